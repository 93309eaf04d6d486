"""YOLOv8n's shape: image (batch, 3, 640, 640) float32 in, (batch, 84, 8400) out: boxes in pixels and 80 class scores.

Shape: the published YOLOv8 description, depth 0.33, width 0.25: backbone with C2f blocks and SPPF, a top-down and
bottom-up neck, a decoupled head whose box side takes the expectation over 16 bins.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .convolutional import convolved

BINS, CLASSES, STRIDES, SIDE = 16, 80, (8, 16, 32), 640


def block(given: int, made: int, kernel: int = 1, stride: int = 1) -> nn.Sequential:
    return convolved(given, made, kernel, stride, act=nn.SiLU, eps=1e-3)


class Residual(nn.Module):
    """Two 3x3 convolutions, with a shortcut or without."""

    def __init__(self, width: int, *, adds: bool) -> None:
        super().__init__()
        self.path = nn.Sequential(block(width, width, 3), block(width, width, 3))
        self.adds = adds

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.path(x)
        return x + y if self.adds else y


class Split(nn.Module):
    """C2f: half of the channels through a chain whose every stage is kept."""

    def __init__(self, given: int, made: int, count: int, *, adds: bool) -> None:
        super().__init__()
        half = made // 2
        self.enter = block(given, made)
        self.chain = nn.ModuleList(Residual(half, adds=adds) for _ in range(count))
        self.leave = block((2 + count) * half, made)

    def forward(self, x: Tensor) -> Tensor:
        parts = list(self.enter(x).chunk(2, 1))
        for stage in self.chain:
            parts.append(stage(parts[-1]))
        joined: Tensor = self.leave(torch.cat(parts, 1))
        return joined


class Pyramid(nn.Module):
    """SPPF: three poolings one after the other, all kept."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.enter, self.leave = block(width, width // 2), block(2 * width, width)
        self.pool = nn.MaxPool2d(5, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        parts = [self.enter(x)]
        for _ in range(3):
            parts.append(self.pool(parts[-1]))
        joined: Tensor = self.leave(torch.cat(parts, 1))
        return joined


class Head(nn.Module):
    """Boxes and classes of three scales, decoded to pixels."""

    def __init__(self, widths: tuple[int, int, int]) -> None:
        super().__init__()
        box, label = max(16, widths[0] // 4, 4 * BINS), max(widths[0], CLASSES)
        self.boxes = nn.ModuleList(
            nn.Sequential(block(w, box, 3), block(box, box, 3), nn.Conv2d(box, 4 * BINS, 1)) for w in widths
        )
        self.labels = nn.ModuleList(
            nn.Sequential(block(w, label, 3), block(label, label, 3), nn.Conv2d(label, CLASSES, 1)) for w in widths
        )
        self.register_buffer("bins", torch.arange(BINS, dtype=torch.float32).view(1, BINS, 1, 1))
        centres, scale = [], []
        for stride in STRIDES:
            side = torch.arange(SIDE // stride) + 0.5
            y, x = torch.meshgrid(side, side, indexing="ij")
            centres.append(torch.stack((x.flatten(), y.flatten())))
            scale.append(torch.full((x.numel(),), float(stride)))
        self.register_buffer("centres", torch.cat(centres, 1).unsqueeze(0))
        self.register_buffer("scale", torch.cat(scale))

    def forward(self, scales: list[Tensor]) -> Tensor:
        boxes = torch.cat([m(x).flatten(2) for m, x in zip(self.boxes, scales, strict=True)], 2)
        labels = torch.cat([m(x).flatten(2) for m, x in zip(self.labels, scales, strict=True)], 2)
        # (batch, 4 sides, bins, places) -> expected distance of each side
        shares = boxes.unflatten(1, (4, BINS)).transpose(1, 2).softmax(1)
        distance = (shares * self.bins).sum(1)
        low, high = self.centres - distance[:, :2], self.centres + distance[:, 2:]
        decoded = torch.cat(((low + high) / 2, high - low), 1) * self.scale
        return torch.cat((decoded, labels.sigmoid()), 1)


class YoloV8n(nn.Module):
    """3.2 M parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(
            block(3, 16, 3, 2), block(16, 32, 3, 2), Split(32, 32, 1, adds=True),
            block(32, 64, 3, 2), Split(64, 64, 2, adds=True),
        )  # fmt: skip
        self.second = nn.Sequential(block(64, 128, 3, 2), Split(128, 128, 2, adds=True))
        self.third = nn.Sequential(block(128, 256, 3, 2), Split(256, 256, 1, adds=True), Pyramid(256))
        self.up = nn.Upsample(scale_factor=2, mode="nearest")
        self.down_second, self.down_first = Split(384, 128, 1, adds=False), Split(192, 64, 1, adds=False)
        self.from_first, self.up_second = block(64, 64, 3, 2), Split(192, 128, 1, adds=False)
        self.from_second, self.up_third = block(128, 128, 3, 2), Split(384, 256, 1, adds=False)
        self.head = Head((64, 128, 256))

    def forward(self, image: Tensor) -> Tensor:
        first = self.first(image)
        second = self.second(first)
        third = self.third(second)
        middle = self.down_second(torch.cat((self.up(third), second), 1))
        small = self.down_first(torch.cat((self.up(middle), first), 1))
        medium = self.up_second(torch.cat((self.from_first(small), middle), 1))
        large = self.up_third(torch.cat((self.from_second(medium), third), 1))
        found: Tensor = self.head([small, medium, large])
        return found
