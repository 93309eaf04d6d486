"""ResNet-50 and EfficientNet-B0: image (batch, 3, 224, 224) float32 in, 1000 logits out.

Shapes: He et al. 2015 (stride in the 3x3 convolution, as is usual today); Tan and Le 2019, table 1.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn


def convolved(given: int, made: int, kernel: int, stride: int = 1, groups: int = 1, act: type[nn.Module] | None = None,
              eps: float = 1e-5) -> nn.Sequential:  # fmt: skip
    """Convolution without bias, BatchNorm, activation."""
    parts: list[nn.Module] = [
        nn.Conv2d(given, made, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(made, eps=eps),
    ]
    return nn.Sequential(*parts, *([act()] if act is not None else []))


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 around a shortcut."""

    def __init__(self, given: int, width: int, stride: int) -> None:
        super().__init__()
        made = 4 * width
        self.path = nn.Sequential(
            convolved(given, width, 1, act=nn.ReLU),
            convolved(width, width, 3, stride, act=nn.ReLU),
            convolved(width, made, 1),
        )
        self.shortcut = nn.Identity() if given == made and stride == 1 else convolved(given, made, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.path(x) + self.shortcut(x))


class ResNet50(nn.Module):
    """25.6 M parameters."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(convolved(3, 64, 7, 2, act=nn.ReLU), nn.MaxPool2d(3, 2, 1))
        blocks, given = [], 64
        for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for number in range(count):
                blocks.append(Bottleneck(given, width, stride if number == 0 else 1))
                given = 4 * width
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(given, classes)

    def forward(self, image: Tensor) -> Tensor:
        logits: Tensor = self.head(self.blocks(self.stem(image)).mean((2, 3)))
        return logits


class Squeeze(nn.Module):
    """Squeeze and excitation."""

    def __init__(self, width: int, squeezed: int) -> None:
        super().__init__()
        self.gate = nn.Sequential(nn.Conv2d(width, squeezed, 1), nn.SiLU(), nn.Conv2d(squeezed, width, 1), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(x.mean((2, 3), keepdim=True))


class InvertedBlock(nn.Module):
    """Expansion, depthwise convolution, squeeze, projection; a shortcut where shapes agree."""

    def __init__(self, given: int, made: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        width = given * expansion
        parts: OrderedDict[str, nn.Module] = OrderedDict()
        if expansion != 1:
            parts["expand"] = convolved(given, width, 1, act=nn.SiLU)
        parts["depthwise"] = convolved(width, width, kernel, stride, groups=width, act=nn.SiLU)
        parts["squeeze"] = Squeeze(width, max(1, given // 4))
        parts["project"] = convolved(width, made, 1)
        self.path = nn.Sequential(parts)
        self.adds = stride == 1 and given == made

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.path(x)
        return x + y if self.adds else y


class EfficientNetB0(nn.Module):
    """5.3 M parameters."""

    STAGES = (  # kernel, stride, expansion, channels, blocks
        (3, 1, 1, 16, 1), (3, 2, 6, 24, 2), (5, 2, 6, 40, 2), (3, 2, 6, 80, 3),
        (5, 1, 6, 112, 3), (5, 2, 6, 192, 4), (3, 1, 6, 320, 1),
    )  # fmt: skip

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        blocks: list[nn.Module] = [convolved(3, 32, 3, 2, act=nn.SiLU)]
        given = 32
        for kernel, stride, expansion, made, count in self.STAGES:
            for number in range(count):
                blocks.append(InvertedBlock(given, made, kernel, stride if number == 0 else 1, expansion))
                given = made
        self.blocks = nn.Sequential(*blocks, convolved(given, 1280, 1, act=nn.SiLU))
        self.head = nn.Linear(1280, classes)

    def forward(self, image: Tensor) -> Tensor:
        logits: Tensor = self.head(self.blocks(image).mean((2, 3)))
        return logits
