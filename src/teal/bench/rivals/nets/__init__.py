"""The networks of `teal bench models` in their published shapes, with random weights: torch modules, a family a file.

Written out here and not taken from a model library, so that the bench needs torch and nothing else. Each class takes
the tensors that `zoo.py` names and returns one tensor.
"""
