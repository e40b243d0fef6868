"""``python -m streampca`` is the ``streampca`` command."""

from .signals import stopping_on_signals


def main() -> None:
    """Run the command line, with signals handled before it is loaded, which takes a tenth of a second."""
    with stopping_on_signals(owns_process=True):
        from .cli.main import main as run

        run()


if __name__ == "__main__":
    main()
