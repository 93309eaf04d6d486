"""Many requests in flight, with deadlines and priorities: python examples/futures.py."""

import teal

with teal.Host() as host:
    sleep = host.load("sleep", "builtin:sleep")
    futures = [sleep.submit(1000, priority=i) for i in range(20)]
    late = sleep.submit(1000, deadline=0.002)
    unwanted = sleep.submit(1000)
    unwanted.cancel()
    print(sum(int(future.result()[0].numpy()) for future in futures))  # 20000
    print(type(late.exception()).__name__, type(unwanted.exception()).__name__)  # DeadlineExceeded Cancelled
