"""Calls awaited in asyncio: python examples/awaited.py."""

import asyncio

import teal


async def main(model: teal.Model) -> float:
    outs = await asyncio.gather(*(model.submit([float(i)] * 3) for i in range(100)))
    return sum(float(out["sum"].numpy()) for out in outs)


with teal.Host() as host:
    print(asyncio.run(main(host.load("sum", "builtin:sum"))))  # 14850.0
