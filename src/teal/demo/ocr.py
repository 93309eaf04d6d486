"""Optical character recognition as a pipeline of six resident kernels: three models and the functions between them.

    page ─ shrunk ─ Det ─ lines ─ Cls ─ upright ─ Rec ─ text

Theory of operation. The models are the detector, the classifier (which lines are upside down) and the recogniser of the
package rapidocr-onnxruntime. Between them stand functions that the worker imports from this file; their geometry and
the decoding are that package's own classes, so that a comparison with it compares engines and nothing else. Lines are
cut out of the page, padded to one height and width, and recognised as one batch.
"""

from __future__ import annotations

import types
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from teal.errors import NotFound
from teal.kernel.function import signature

if TYPE_CHECKING:
    from teal import Future, Host

PACKAGE = "rapidocr_onnxruntime"
INSTALL = "pip install rapidocr-onnxruntime"
STAGES = ("shrunk", "Det", "lines", "Cls", "upright", "Rec")
SURE = 0.5  # score below which RapidOCR drops a line, as its own settings say

Array = npt.NDArray[Any]
_PAGE = ("uint8", ("h", "w", 3))
_BATCH = ("float32", ("lines", 3, None, None))
_CROPS = ("uint8", ("lines", None, None, 3))
_SIZES = ("int64", ("lines", 2))


class Parts:
    """The package's classes, without the engines that their constructors would start."""

    def __init__(self) -> None:
        import cv2
        import yaml
        from rapidocr_onnxruntime import RapidOCR
        from rapidocr_onnxruntime.ch_ppocr_cls import TextClassifier
        from rapidocr_onnxruntime.ch_ppocr_det import TextDetector
        from rapidocr_onnxruntime.ch_ppocr_det.utils import DBPostProcess, DetPreProcess
        from rapidocr_onnxruntime.ch_ppocr_rec import TextRecognizer

        cv2.setNumThreads(1)  # a worker is a core; OpenCV's own threads would take those of the others
        self.settings: dict[str, Any] = yaml.safe_load((folder() / "config.yaml").read_text("utf-8"))
        det, cls, rec = (self.settings[stage] for stage in ("Det", "Cls", "Rec"))
        self.shrink = DetPreProcess(det["limit_side_len"], det["limit_type"])
        names = ("thresh", "box_thresh", "max_candidates", "unclip_ratio", "score_mode", "use_dilation")
        self.boxes_of = DBPostProcess(**{name: det[name] for name in names})
        self.tidy, self.reader = TextDetector.__new__(TextDetector), RapidOCR
        self.cls_shape, self.rec_shape = cls["cls_image_shape"], rec["rec_img_shape"]
        self._for_cls, self._classifier = types.SimpleNamespace(cls_image_shape=self.cls_shape), TextClassifier
        self._for_rec, self._recogniser = types.SimpleNamespace(rec_image_shape=self.rec_shape), TextRecognizer

    def for_cls(self, crop: Array) -> Array:
        scaled: Array = self._classifier.resize_norm_img(self._for_cls, crop)
        return scaled

    def for_rec(self, crop: Array, widest: float) -> Array:
        scaled: Array = self._recogniser.resize_norm_img(self._for_rec, crop, widest)
        return scaled


def folder() -> Path:
    """Where the package lies. Raises NotFound."""
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise NotFound(f"{PACKAGE} is not installed: {INSTALL}")
    return Path(spec.origin).parent


@lru_cache(maxsize=1)
def parts() -> Parts:
    """Made when they are first needed. Raises NotFound."""
    folder()
    return Parts()


def files() -> dict[str, Path]:
    """The ONNX files of Det, Cls and Rec. Raises NotFound."""
    settings = parts().settings
    return {stage: folder() / settings[stage]["model_path"] for stage in ("Det", "Cls", "Rec")}


# ---- what stands between the models ----------------------------------------------------------------------------------


@signature(inputs={"page": _PAGE}, outputs={"x": ("float32", (1, 3, None, None))}, pure=True)
def shrunk(page: Array) -> Array:
    """The page as the detector wants it."""
    x: Array = parts().shrink(page)
    return x


@signature(
    inputs={"page": _PAGE, "map": ("float32", (1, 1, None, None))},
    outputs={"x": _BATCH, "crops": _CROPS, "sizes": _SIZES, "boxes": ("float32", ("lines", 4, 2))},
    pure=True,
)
def lines(page: Array, map: Array) -> dict[str, Array]:
    """The text lines that the detector's map shows, cut out of the page: as the classifier wants them, and as they are
    (padded; `sizes` has height and width). Their corners are in `boxes`. A page without any gets one white line, which
    reads as nothing: the models cannot run on none."""
    own = parts()
    shape = page.shape[:2]
    found, _ = own.boxes_of(map, shape)
    boxes = own.reader.sorted_boxes(own.tidy.filter_tag_det_res(found, shape))
    crops = own.reader.get_crop_img_list(None, page, boxes)
    if not crops:
        boxes, crops = [np.zeros((4, 2))], [np.full((own.rec_shape[1], own.rec_shape[2], 3), 255, np.uint8)]
    sizes = np.array([crop.shape[:2] for crop in crops], np.int64)
    padded = np.zeros((len(crops), *sizes.max(0), 3), np.uint8)
    for place, crop in zip(padded, crops, strict=True):
        place[: crop.shape[0], : crop.shape[1]] = crop
    x = np.array([own.for_cls(crop) for crop in crops], np.float32)
    return {"x": x, "crops": padded, "sizes": sizes, "boxes": np.array(boxes, np.float32)}


@signature(
    inputs={"crops": _CROPS, "sizes": _SIZES, "turned": ("float32", ("lines", 2))}, outputs={"x": _BATCH}, pure=True
)
def upright(crops: Array, sizes: Array, turned: Array) -> Array:
    """Every line the right way up, as the recogniser wants them: one batch, as wide as the longest."""
    own = parts()
    limit = own.settings["Cls"]["cls_thresh"]
    _, high, wide = own.rec_shape
    cut = [crop[:h, :w] for crop, (h, w) in zip(crops, sizes, strict=True)]
    cut = [c[::-1, ::-1] if t[1] > max(t[0], limit) else c for c, t in zip(cut, turned, strict=True)]
    widest = max([wide / high, *(c.shape[1] / c.shape[0] for c in cut)])
    return np.array([own.for_rec(np.ascontiguousarray(c), widest) for c in cut], np.float32)


# ---- the pipeline ----------------------------------------------------------------------------------------------------


class Reader:
    """The six kernels on a host. threads: of each engine; name: in front of theirs."""

    def __init__(self, host: Host, threads: int | None = None, name: str = "ocr") -> None:
        known = files()
        self._stages = {}
        for stage in STAGES:
            source, own = (known[stage], threads) if stage in known else (f"{__name__}:{stage}", None)
            self._stages[stage] = host.load(f"{name}-{stage.lower()}", source, threads=own)
        self._decode = alphabet()

    def read(self, page: Array) -> list[tuple[str, float]]:
        """Text and score of every line, from top to bottom; page: uint8 (h, w, 3), BGR."""
        return self.text(self.submit(page).result()[0].numpy())

    def submit(self, page: Array) -> Future:
        """All six stages at once: each one starts when what it takes is there, without a way back to this process.

        What comes of it are the recogniser's scores, for `text`.
        """
        shrunk, det, lines, cls, upright, rec = self._stages.values()
        found = lines.submit(page=page, map=det.submit(shrunk.submit(page=page)))
        turned = cls.submit(found["x"])
        return rec.submit(upright.submit(crops=found["crops"], sizes=found["sizes"], turned=turned))

    def read_in_steps(self, page: Array) -> list[tuple[str, float]]:
        """The same with the client between the stages: it waits for each before it calls the next."""
        shrunk, det, lines, cls, upright, rec = self._stages.values()
        found = lines(page=page, map=det(shrunk(page=page)[0])[0])
        x = upright(crops=found["crops"], sizes=found["sizes"], turned=cls(found["x"])[0])[0]
        return self.text(rec(x)[0].numpy())

    def text(self, scores: Array) -> list[tuple[str, float]]:
        """What the recogniser's scores (lines, steps, characters) say."""
        decoded: list[tuple[str, float]] = self._decode(scores)
        return decoded


def alphabet() -> Any:
    """The package's decoder with the characters that the recogniser's file carries. Raises NotFound."""
    import onnxruntime
    from rapidocr_onnxruntime.ch_ppocr_rec.utils import CTCLabelDecode

    session = onnxruntime.InferenceSession(str(files()["Rec"]), providers=["CPUExecutionProvider"])
    return CTCLabelDecode(character=session.get_modelmeta().custom_metadata_map["character"].splitlines())


def page(path: str | Path | None = None) -> Array:
    """An image as uint8 (h, w, 3), BGR; by default a scanned page that scikit-image ships. Raises NotFound."""
    from PIL import Image, UnidentifiedImageError

    if path is None:
        spec = find_spec("skimage")
        if spec is None or spec.origin is None:
            raise NotFound("no page image: pip install --no-deps scikit-image, or give one of your own")
        path = Path(spec.origin).parent / "data" / "page.png"
    try:
        with Image.open(path) as image:
            return np.ascontiguousarray(np.asarray(image.convert("RGB"))[..., ::-1])
    except (OSError, UnidentifiedImageError) as error:
        raise NotFound(f"{path}: no image that can be read ({error})") from None
