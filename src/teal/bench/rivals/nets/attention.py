"""Transformers: ViT-B/16, DeiT-S, DistilBERT (128 tokens), and the shape of TinyLlama-1.1B with fewer layers.

Shapes: Dosovitskiy et al. 2020; Touvron et al. 2020 (without distillation); Sanh et al. 2019; the configuration of
TinyLlama-1.1B (hidden 2048, 32 heads of 64, 4 of them for keys and values, 5632 inside, 32,000 words).
"""

from __future__ import annotations

import torch
import torch.nn.functional as functional
from torch import Tensor, nn


class Attention(nn.Module):
    """Self-attention with biases; no mask."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.enter, self.leave = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.enter(x).chunk(3, -1))
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        left: Tensor = self.leave(mixed.transpose(1, 2).flatten(2))
        return left


class Layer(nn.Module):
    """Attention and perceptron, normalised before (ViT) or after (BERT)."""

    def __init__(self, width: int, heads: int, *, first: bool, eps: float) -> None:
        super().__init__()
        self.attention = Attention(width, heads)
        self.perceptron = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.one, self.two = nn.LayerNorm(width, eps=eps), nn.LayerNorm(width, eps=eps)
        self.first = first

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if self.first:
            x = x + self.attention(self.one(x), mask)
            return x + self.perceptron(self.two(x))
        x = self.one(x + self.attention(x, mask))
        y: Tensor = self.two(x + self.perceptron(x))
        return y


class VisionTransformer(nn.Module):
    """Image (batch, 3, 224, 224) float32 in, 1000 logits out. width 768, 12 heads: ViT-B/16; 384, 6: DeiT-S."""

    def __init__(self, width: int, heads: int, depth: int = 12, classes: int = 1000) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.token = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.place = nn.Parameter(torch.randn(1, 197, width) * 0.02)
        self.layers = nn.Sequential(*(Layer(width, heads, first=True, eps=1e-6) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width, eps=1e-6), nn.Linear(width, classes)

    def forward(self, image: Tensor) -> Tensor:
        patches = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(patches.shape[0], -1, -1), patches), 1) + self.place
        logits: Tensor = self.head(self.norm(self.layers(x))[:, 0])
        return logits


class DistilBert(nn.Module):
    """input_ids and attention_mask (batch, 128) int64 in, 2 logits out (the shape that is used for sentiment)."""

    def __init__(self, width: int = 768, heads: int = 12, depth: int = 6, words: int = 30522) -> None:
        super().__init__()
        self.word, self.place = nn.Embedding(words, width), nn.Embedding(512, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.layers = nn.ModuleList(Layer(width, heads, first=False, eps=1e-12) for _ in range(depth))
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.norm(self.word(input_ids) + self.place.weight[: input_ids.shape[1]])
        mask = (1.0 - attention_mask.to(x.dtype))[:, None, None, :] * -1e4
        for layer in self.layers:
            x = layer(x, mask)
        logits: Tensor = self.head(x[:, 0])
        return logits


class RootNorm(nn.Module):
    """Scaled by the root of the mean square."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


class LlamaLayer(nn.Module):
    """Rotary attention with few heads for keys and values, gated perceptron."""

    def __init__(self, width: int, heads: int, shared: int, inside: int) -> None:
        super().__init__()
        self.heads, self.shared, size = heads, shared, width // heads
        self.q, self.k = nn.Linear(width, width, bias=False), nn.Linear(width, shared * size, bias=False)
        self.v, self.o = nn.Linear(width, shared * size, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, inside, bias=False), nn.Linear(width, inside, bias=False)
        self.down = nn.Linear(inside, width, bias=False)
        self.one, self.two = RootNorm(width), RootNorm(width)

    def _split(self, x: Tensor, heads: int) -> Tensor:
        return x.unflatten(-1, (heads, -1)).transpose(1, 2)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        y = self.one(x)
        q, k, v = self._split(self.q(y), self.heads), self._split(self.k(y), self.shared), self.v(y)
        q, k = turned(q, cosine, sine), turned(k, cosine, sine)
        times = self.heads // self.shared
        k, v = k.repeat_interleave(times, 1), self._split(v, self.shared).repeat_interleave(times, 1)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(mixed.transpose(1, 2).flatten(2))
        y = self.two(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


def turned(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary position: pairs (i, i + half) turned by the angle of their place."""
    low, high = x.chunk(2, -1)
    return x * cosine + torch.cat((-high, low), -1) * sine


class TinyLlama(nn.Module):
    """input_ids (batch, 128) int64 in, the 32,000 logits after the last token out. The published depth is 22."""

    def __init__(self, depth: int, width: int = 2048, heads: int = 32, shared: int = 4, inside: int = 5632,
                 words: int = 32000, tokens: int = 128) -> None:  # fmt: skip
        super().__init__()
        self.word = nn.Embedding(words, width)
        self.layers = nn.ModuleList(LlamaLayer(width, heads, shared, inside) for _ in range(depth))
        self.norm, self.head = RootNorm(width), nn.Linear(width, words, bias=False)
        size = width // heads
        angle = torch.outer(torch.arange(tokens).float(), 10000.0 ** (-torch.arange(0, size, 2).float() / size))
        self.register_buffer("cosine", torch.cat((angle, angle), -1).cos())
        self.register_buffer("sine", torch.cat((angle, angle), -1).sin())

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.word(input_ids)
        for layer in self.layers:
            x = layer(x, self.cosine, self.sine)
        logits: Tensor = self.head(self.norm(x[:, -1]))
        return logits


class Perceptron(nn.Module):
    """64-64-8, as `data/mlp.onnx`: x (batch, 64) float32 in, 8 numbers out."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(64, 64), nn.Linear(64, 8)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.two(torch.relu(self.one(x)))
        return y


class SentenceBert(nn.Module):
    """all-MiniLM-L6-v2: input_ids and attention_mask (batch, 128) int64 in, a unit vector of 384 numbers out.

    Mean of the token vectors under the mask, scaled to length one, as its model card says.
    """

    def __init__(self, width: int = 384, heads: int = 12, depth: int = 6, words: int = 30522) -> None:
        super().__init__()
        self.word, self.place = nn.Embedding(words, width), nn.Embedding(512, width)
        self.kind = nn.Parameter(torch.zeros(width))  # of the first segment
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.layers = nn.ModuleList(Layer(width, heads, first=False, eps=1e-12) for _ in range(depth))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.norm(self.word(input_ids) + self.place.weight[: input_ids.shape[1]] + self.kind)
        real = attention_mask.to(x.dtype)
        mask = (1.0 - real)[:, None, None, :] * -1e4
        for layer in self.layers:
            x = layer(x, mask)
        mean = (x * real[..., None]).sum(1) / real.sum(1, keepdim=True)
        return functional.normalize(mean, dim=-1)

    def take(self, weights: dict[str, Tensor]) -> None:
        """The published weights, by their names there."""
        with torch.no_grad():
            self.word.weight.copy_(weights["embeddings.word_embeddings.weight"])
            self.place.weight.copy_(weights["embeddings.position_embeddings.weight"])
            self.kind.copy_(weights["embeddings.token_type_embeddings.weight"][0])
            take_affine(self.norm, weights, "embeddings.LayerNorm")
            for number, layer in enumerate(self.layers):
                name = f"encoder.layer.{number}"
                for part in ("weight", "bias"):
                    joined = [weights[f"{name}.attention.self.{which}.{part}"] for which in ("query", "key", "value")]
                    getattr(layer.attention.enter, part).copy_(torch.cat(joined))
                take_affine(layer.attention.leave, weights, f"{name}.attention.output.dense")
                take_affine(layer.one, weights, f"{name}.attention.output.LayerNorm")
                take_affine(layer.perceptron[0], weights, f"{name}.intermediate.dense")
                take_affine(layer.perceptron[2], weights, f"{name}.output.dense")
                take_affine(layer.two, weights, f"{name}.output.LayerNorm")


def take_affine(module: nn.Module, weights: dict[str, Tensor], name: str) -> None:
    for part in ("weight", "bias"):
        getattr(module, part).copy_(weights[f"{name}.{part}"])
