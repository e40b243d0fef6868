"""The ``streampca`` command: commands and run files, terminal output, and the demo.

Every command builds a `Run` (`config`) from its options (`options`) and hands it to `pipeline`, which calls the Python
API; `terminal` draws progress and tables; `run_record` keeps what a run was. Nothing else knows run files.
"""
