"""Descriptions of what is computed and how it is run: a plain dataclass for each kind of model, and one for a run.

A field here is a parameter of the scikit-learn estimator (a subclass), an argument of `fit` and `plan`, a key of the
section ``model`` of run files, an option of ``streampca fit --kind``, and a part of the identity of a checkpoint. Its
meaning is its entry in the class's docstring, whose first sentence is the help of the option. `registry` lists the
kinds; to add one, write its class in a file of its family and a row there.
"""
