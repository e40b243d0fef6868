"""The ``streampca`` command: commands and run files, terminal output, and the demo.

Every command builds a `RunFile` from its options, which `options` makes of the fields of kinds of model and of
`sections`, and hands it to `pipeline`, which calls public functions; `config` reads run files, `terminal` draws
progress and tables, `run_record` keeps what a run was. Nothing else knows run files.
"""
