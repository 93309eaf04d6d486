"""The core's timing hooks, with made-up times."""


def bench_call(address: str, model: str, nbytes: int, n: int, core: int) -> list[int]:
    return [400 + i % 7 for i in range(n)]


def bench_echo(nbytes: int, n: int, core_a: int, core_b: int) -> list[int]:
    return [300 + i % 5 for i in range(n)]
