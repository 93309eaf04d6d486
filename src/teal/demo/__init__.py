"""Search by meaning over anyone's text: Teal's main job, shown on real input.

Theory of operation. `run` starts a host and loads one sentence-embedding model. Two separate client processes
(`client`) attach to it at once, each embeds half of the passages and the question, and ranks its half; `run` merges the
two rankings. A further process (`compare`) then makes the same calls three ways, one at a time: on the resident model,
on a session of its own in-process, and over a plain HTTP server (`http`), and checks that all three answer alike.

Read in this order: text and passage (what is searched), embedder (what a call needs and gives), resident, local and
http (the three ways to make that call), client, compare, crew (child processes), run, report.
"""
