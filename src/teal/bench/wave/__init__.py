"""`teal bench wave`: policies off the host's core, beside the same policies in-line on it.

loads.py      what is asked for: RocksDB, exponential and bimodal service times, two ONNX models
rocks.py      the functions that read RocksDB
driver.py     the lane: a host with one worker on a core of its own, the load and the agent's loop on another
stage.py      what the parts stand on: a driver for each mode, blocks in turn
saturation.py throughput off-loaded against in-line
ablation.py   the link's tricks, one by one
latency.py    latency against load; short requests behind long ones
costs.py      what the pieces cost: a staged pick, a round trip, a message, a policy's events
failing.py    an agent that dies, and one that is replaced
foundation.py a pool without an agent, beside an older Teal
plot.py       the pictures
bench.py      the promises, and the parts in their order
"""
