"""The ``streampca`` command: commands and run files, terminal output, and the demo.

`options` makes the options of commands from the fields of kinds of model and of `sections`. A command builds a
`RunFile` from its options, and `pipeline` carries it out by calls of public functions. `config` reads run files,
`run_record` writes the record of a run, and `terminal` draws progress and tables. Nothing else knows run files.
"""
