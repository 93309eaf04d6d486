"""Side-by-side measurements: every bench runs its rivals in the same invocation and prints what they were given.

`report` is the form of every result, `machine` says what it was measured on, `lanes` lets contenders take turns,
`rivals/` holds the contenders that are not Teal, `client` and `host` are Teal's own lanes, `call` is the bench of
`teal bench call`, `residence` its part about what a resident model costs while nobody times calls.
"""
