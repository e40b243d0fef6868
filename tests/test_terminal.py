"""Output on terminals and in logs: progress, small pictures, the table of components."""

from __future__ import annotations

import io
import itertools
import re
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console
from rich.text import Text

import streampca
from streampca.cli.terminal import Progress, components_table, draw_images, print_model
from streampca.events import (
    BlockDone,
    Checkpoint,
    Converging,
    Drawing,
    PassFinished,
    PassStarted,
    Planned,
    Resumed,
    Solving,
    Warned,
)


class Clock:
    """Seconds that pass only when told to."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def log(width=80):
    return Console(file=io.StringIO(), width=width)


def screen(width=80, **options):
    return Console(file=Utf8(), width=width, force_terminal=True, color_system="truecolor", _environ={}, **options)


class Utf8(io.StringIO):
    """A text stream that says how it is encoded, as terminals do."""

    encoding = "utf-8"


def lines(console):
    return console.file.getvalue().splitlines()


def plain(console):
    """The characters on the screen, without colours."""
    return [Text.from_ansi(line).plain for line in lines(console)]


def a_pass(listener, clock, blocks=60, seconds=1.0, of=2, size=2**20):
    listener(PassStarted("scatter", 1, of, samples=100 * blocks, bytes=size * blocks))
    for _ in range(blocks):
        clock.now += seconds
        listener(BlockDone(100, size))
    listener(PassFinished(blocks * seconds))


def test_a_log_gets_a_first_line_after_2_s_and_one_every_10_s():
    clock, console = Clock(), log()
    with Progress(console, clock=clock) as listener:
        a_pass(listener, clock, blocks=30)
    assert lines(console) == [
        "scatter, pass 1 of 2: 3000 samples, 30.0 MiB",
        "scatter, pass 1 of 2: 7 %, 100 samples/s, 1.0 MiB/s, 28 s left",
        "scatter, pass 1 of 2: 40 %, 100 samples/s, 1.0 MiB/s, 18 s left",
        "scatter, pass 1 of 2: 73 %, 100 samples/s, 1.0 MiB/s, 8.0 s left",
        "scatter, pass 1 of 2: 30 s, 100 samples/s, 1.0 MiB/s",
    ]


def test_a_short_pass_takes_two_lines():
    clock, console = Clock(), log()
    with Progress(console, clock=clock) as listener:
        a_pass(listener, clock, seconds=0.01, of=1)
    assert lines(console) == ["scatter: 6000 samples, 60.0 MiB", "scatter: 0.6 s, 10000 samples/s, 100 MiB/s"]


def test_a_pass_that_reads_nothing_has_no_bytes():
    clock, console = Clock(), log()
    with Progress(console, clock=clock) as listener:
        a_pass(listener, clock, blocks=1, seconds=80.0, of=1, size=0)
    assert lines(console) == ["scatter: 100 samples", "scatter: 1 min 20 s, 1.2 samples/s"]


def test_what_checkpoints_of_spans_cover_takes_one_line():
    clock, console = Clock(), log()
    with Progress(console, clock=clock) as listener:
        listener(PassStarted("scatter", 1, 1, samples=1000, bytes=0))
        for count in (300, 200):
            listener(Resumed(count, 0))
            listener(BlockDone(50, 0))
        clock.now += 2.0
        listener(BlockDone(50, 0))
        listener(Resumed(100, 0))
        listener(BlockDone(250, 0))
        listener(PassFinished(4.0))
    told = [line for line in lines(console) if "resumed" in line]
    assert told == [f"scatter: resumed: {count} samples of the pass were done before" for count in (500, 100)]
    assert told[0] == lines(console)[1]


def logged(*events, width=80):
    """Lines of a log that is told of some events."""
    console = log(width)
    with Progress(console) as listener:
        for event in events:
            listener(event)
    return lines(console)


@pytest.mark.parametrize(("of", "name"), [(1, "scatter"), (3, "scatter, pass 1 of 3"), (None, "scatter, pass 1")])
def test_a_pass_is_numbered_where_there_may_be_several(of, name):
    assert logged(PassStarted("scatter", 1, of, samples=1, bytes=1)) == [f"{name}: 1 samples, 1 B"]


def test_warnings_take_one_line_however_narrow_the_log_and_whatever_they_hold():
    message = "block 3 of [bold]scans.zarr[/bold] differed from its probes and was read again; " * 2
    assert logged(Warned(message), width=20) == [f"warning: {message}"]


def test_a_log_says_what_is_being_solved_and_skips_the_rest():
    others = (Planned(plan=None), Checkpoint("model.zarr", 100), BlockDone(1, 1), PassFinished(1.0))
    assert logged(Solving("784 x 784 eigenproblem"), *others) == ["solving: 784 x 784 eigenproblem"]
    assert logged(Solving("8192 x 8192 eigenproblem", 40.0)) == ["solving: 8192 x 8192 eigenproblem, about 40 s"]


def test_a_log_says_how_far_an_iteration_has_come():
    steps = (Converging(passes=1, residual=np.inf, tol=1e-4), Converging(passes=2, residual=2.34e-3, tol=1e-4))
    assert logged(*steps) == [
        "after 1 pass: not all components are found yet",
        "after 2 passes: largest residual 2.3e-03, to reach 1.0e-04",
    ]


def test_a_bar_says_how_far_an_iteration_has_come():
    console = screen()
    with Progress(console) as listener:
        bars, said = listener._bars, []
        for event in (
            PassStarted("products", 1, None, samples=10, bytes=10),
            Solving("what is left"),
            Converging(passes=1, residual=0.02, tol=1e-4),
            PassStarted("products", 2, None, samples=10, bytes=10),
            Converging(passes=2, residual=1e-3, tol=1e-4),
        ):
            listener(event)
            said.append(bars.tasks[-1].description)
    assert said == [
        "products, pass 1",
        "solving: what is left",
        "solving: what is left, residual 2e-02",
        "products, pass 2, residual 2e-02",
        "products, pass 2, residual 1e-03",
    ]


@pytest.mark.parametrize("console", [log(), screen()], ids=["log", "terminal"])
def test_quiet_prints_warnings_only(console):
    clock = Clock()
    with Progress(console, quiet=True, clock=clock) as listener:
        a_pass(listener, clock)
        listener(Warned("careful"))
        listener(Solving("unseen"))
    assert plain(console) == ["warning: careful"]


def test_standard_error_is_the_default(capsys):
    with Progress() as listener:
        listener(Warned("careful"))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "warning: careful\n"


def test_a_terminal_shows_a_bar_in_80_columns():
    console = screen()
    now = itertools.count(0.0, 0.25)
    with Progress(console) as listener:
        bars = listener._bars
        bars.get_time = partial(next, now)
        listener(PassStarted("scatter", 2, 12, samples=60_000, bytes=60 * 2**30))
        for _ in range(30):
            listener(BlockDone(1000, 2**30))
        console.print(bars.get_renderable())
    bar = next(line for line in plain(console) if "50 %" in line)
    assert bar.startswith("scatter, pass 2 of 12 ━━")
    assert "samples/s" in bar
    assert "GiB/s" in bar
    assert "…" not in bar
    assert len(bar) <= 80


def test_a_terminal_says_how_many_pictures_are_left():
    console = screen()
    with Progress(console) as listener:
        bars, shown = listener._bars, []
        for number, what in enumerate(("spectrum", "components", "samples"), start=1):
            listener(Drawing(what, number, 3))
            (task,) = bars.tasks
            shown.append((task.description, task.completed, task.total))
        console.print(bars.get_renderable())
    assert shown == [
        (f"drawing {n} of 3: {what}", n - 1, 3) for n, what in ((1, "spectrum"), (2, "components"), (3, "samples"))
    ]
    assert not any("samples/s" in line for line in plain(console))


@pytest.mark.slow
def test_leading_components_are_drawn_on_terminals(tmp_path):
    """The mean and as many as two rows hold; elsewhere, and of samples without two axes, none."""
    images = np.random.default_rng(0).normal(size=(60, 12, 10, 3))
    model = streampca.fit(images, n_components=20)
    model.save(tmp_path / "m.zarr")
    on_disk = streampca.load(tmp_path / "m.zarr", memory="1B")
    for new, drawn in ((partial(screen, 80), 7), (partial(screen, 120), 11), (log, 0)):
        for each in (model, on_disk):
            console = new()
            print_model(console, each)
            titles = re.findall(r"\b\d+: [\d.]+ %", " ".join(plain(console)))
            assert len(titles) == drawn
            assert any("mean" in line for line in plain(console)) == (drawn > 0)
    lines_alone = screen()
    print_model(lines_alone, streampca.fit(images.reshape(60, -1), n_components=2))
    assert not any("mean" in line for line in plain(lines_alone))


def test_a_terminal_keeps_one_line_of_each_finished_pass():
    clock, console = Clock(), screen()
    with Progress(console, clock=clock) as listener:
        a_pass(listener, clock)
        listener(Warned("careful"))
        listener(Solving("784 x 784 eigenproblem"))
    shown = plain(console)
    assert "scatter, pass 1 of 2: 1 min 00 s, 100 samples/s, 1.0 MiB/s" in shown
    assert "warning: careful" in shown


def test_an_error_inside_leaves_the_cursor_shown():
    console = screen()
    listener = Progress(console)

    def fail():
        with listener:
            listener(PassStarted("scatter", 1, 1, samples=10, bytes=10))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert console.file.getvalue().rindex("\x1b[?25h") > console.file.getvalue().rindex("\x1b[?25l")


RAMP = np.outer(np.ones(32), np.arange(32.0))


def drawn(console, image, *, signed, **how):
    draw_images(console, [image], ["1: 20 %"], signed=[signed], **how)
    return [line.rstrip() for line in lines(console)]


def test_without_colour_a_picture_is_characters():
    *picture, title = drawn(log(), RAMP, signed=False, width=10)
    assert (picture, title.strip()) == ([" .:-=+*#%@"] * 5, "1: 20 %")
    *picture, title, legend = drawn(log(), RAMP - 15.5, signed=True, width=12)
    assert (picture, title.strip()) == (["OO=-'  .+*@@"] * 6, "1: 20 %")
    assert legend == "above zero .+*#@   below zero '-=oO"


def test_with_colour_a_cell_is_two_pixels():
    black, white = "0;0;0", "255;255;255"
    first = drawn(screen(), np.array([[0.0, 1.0], [1.0, 0.0]]), signed=False, width=2)[0]
    assert first == f"\x1b[38;2;{black};48;2;{white}m▀\x1b[0m\x1b[38;2;{white};48;2;{black}m▀\x1b[0m"


def test_components_go_from_blue_through_white_to_red():
    first = drawn(screen(), np.array([[-2.0, 0.0, 1.0]] * 3), signed=True, width=3)[0]
    blue, white, red = np.array(re.findall(r"38;2;(\d+);(\d+);(\d+)", first), int)
    assert blue[2] > 2 * blue[0]
    assert white.min() > 240
    assert red[0] > 1.5 * red[2] > 100, "half of the scale is half red"


@pytest.mark.parametrize(
    "console",
    [log(), screen(no_color=True), Console(file=Utf8(), width=80, force_terminal=True, color_system="standard")],
    ids=["log", "NO_COLOR", "16 colours"],
)
def test_consoles_without_colour_get_characters(console):
    draw_images(console, [RAMP, RAMP - 9], ["mean", "1"], signed=[False, True])
    assert "".join(plain(console)).isascii()


@pytest.mark.parametrize("new", [log, screen], ids=["log", "terminal"])
@pytest.mark.parametrize(("width", "to_row"), [(80, 4), (40, 2), (10, 1)])
def test_rows_fit_the_console(new, width, to_row):
    console = new(width)
    titles = [f"component {number}: 12.3 % of the variance" for number in range(1, 9)]
    draw_images(console, [RAMP - number for number in range(8)], titles, signed=[True] * 8)
    shown = plain(console)
    assert all(len(line.rstrip()) <= width for line in shown[:-1])
    assert sum(line.count("variance") for line in shown) == 8
    assert max(line.count("variance") for line in shown) == to_row


def test_the_table_of_components_says_what_is_trusted():
    model = SimpleNamespace(
        explained_variance_ratio=np.array([0.5, 0.25, 0.125]),
        angle_bound=np.array([1e-9, np.radians(2), np.nan]),
        error_bound=np.array([1e-6, 2e-3, np.nan]),
    )
    console = log()
    console.print(components_table(model))
    assert [line.split() for line in lines(console)[1:]] == [
        ["1", "50.00", "50.00", "1e-06", "0.001°"],
        ["2", "25.00", "75.00", "0.002", "2°"],
        ["3", "12.50", "87.50", "not", "measured", "not", "measured"],
    ]
    assert components_table(model, count=2).row_count == 2
