"""The rules of a job file that a type cannot express, by what they are about. Pure.

Rules for one value return it, converted, or raise ValueError with the end of a sentence that gives advice. Rules about several
values yield (path, sentence) pairs, so that all mistakes are reported at once, each at its own line; the values may still be of
wrong types. The models (`keys`, `tpu_keys`, `train_keys`), `overrides` and `sweep` use them.
"""
