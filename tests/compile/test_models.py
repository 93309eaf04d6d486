"""Models of timm and transformers, of small configurations with random weights, against eager.

They run operator by operator: what inductor makes of them is inductor's.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import teal.compile

Compile = Callable[..., Any]
same = torch.testing.assert_close


def found(name: str) -> Any:
    """A library, or a skipped test: these two are in no extra, and want a torchvision that suits this torch."""
    try:
        return importlib.import_module(name)
    except Exception as error:
        pytest.skip(f"needs {name}: {str(error).splitlines()[0]}")


def check(compiled: Compile, model: nn.Module, *given: torch.Tensor, tolerance: float = 1e-4, **named: Any) -> None:
    """One graph, no fallback, the same answer, twice."""
    before = teal.compile.statistics()
    model.eval()
    fast = compiled(model, fullgraph=True)
    with torch.inference_mode():
        expected = model(*given, **named)
        for _ in range(2):
            result = fast(*given, **named)
            assert type(result) is type(expected)
            same(dict(result) if isinstance(result, dict) else result, expected, atol=tolerance, rtol=tolerance)
    after = teal.compile.statistics()
    assert after.graphs == before.graphs + 1
    assert after.fallbacks == before.fallbacks
    assert after.left_bytes == before.left_bytes


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("resnet18", {"num_classes": 10}),
        ("deit_tiny_patch16_224", {"img_size": 64, "depth": 2, "num_classes": 10}),
        ("efficientnet_b0", {"num_classes": 10}),
    ],
)
def test_timm(compiled: Compile, name: str, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = found("timm").create_model(name, pretrained=False, **options)
    check(compiled, model, torch.randn(2, 3, 64, 64))


def test_distilbert(compiled: Compile) -> None:
    transformers = found("transformers")
    found("transformers.models.distilbert.modeling_distilbert")
    torch.manual_seed(0)
    config = transformers.DistilBertConfig(dim=64, hidden_dim=128, n_heads=4, n_layers=2, vocab_size=100)
    ids = torch.randint(0, 100, (2, 16))
    mask = torch.ones(2, 16, dtype=torch.int64)
    mask[1, 10:] = 0
    check(compiled, transformers.DistilBertModel(config), input_ids=ids, attention_mask=mask)


def test_minilm_shaped(compiled: Compile) -> None:
    transformers = found("transformers")
    found("transformers.models.bert.modeling_bert")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96, vocab_size=100
    )
    ids = torch.randint(0, 100, (2, 16))
    mask = torch.ones(2, 16, dtype=torch.int64)
    check(compiled, transformers.BertModel(config), input_ids=ids, attention_mask=mask)


def test_a_training_loop_in_between(compiled: Compile) -> None:
    """A user's training code: epochs in train mode by its own means, evaluation by the compiled model."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.5), nn.Flatten())
            self.head = nn.Linear(8 * 36, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.body(x))

    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    x, y = torch.randn(16, 1, 8, 8), torch.randint(0, 3, (16,))
    evaluate = compiled(net)
    losses = []
    for _ in range(4):
        net.train()
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
        net.eval()
        with torch.no_grad():
            same(evaluate(x), net(x), atol=1e-5, rtol=1e-5)
            losses.append(float(nn.functional.cross_entropy(evaluate(x), y)))
    assert losses[-1] != losses[0]
