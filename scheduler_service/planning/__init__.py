"""What was or could be decided, beside the engine, which decides.

How full zones are, what fits where, which host comes before which, what would
let a refused request pass, and requests that are decided again. Each works on
a table of its own, by the pipeline of the engine; nothing is claimed.
"""
