"""`teal tune MODEL.onnx|.pt2`: the engine, precision and threads that run a model fastest here, within an error.

`search` tries, `record` keeps what won, `choice` is what `host.load` does with it.
"""
