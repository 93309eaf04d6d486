"""A PyTorch model as a resident kernel, by one changed line: python examples/compiled.py"""

import torch

model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)).eval()
fast = torch.compile(model, backend="teal")
x = torch.randn(4, 64)
with torch.inference_mode():
    print(torch.allclose(fast(x), model(x), atol=1e-5))  # True
    model[2].bias += 1
    print(torch.allclose(fast(x), model(x), atol=1e-5))  # True
