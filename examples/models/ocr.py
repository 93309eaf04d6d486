"""Text of a page image, by three resident models and the functions between them: python examples/models/ocr.py [IMAGE].

The models are those of the package rapidocr-onnxruntime. Compared with what RapidOCR itself reads.
"""

import sys

from rapidocr_onnxruntime import RapidOCR

import teal
from teal.demo import ocr

if __name__ == "__main__":
    page = ocr.page(*sys.argv[1:])
    with teal.Host() as host:
        mine = [text for text, score in ocr.Reader(host).read(page) if score >= ocr.SURE]
    theirs, _ = RapidOCR(rec_batch_num=1000)(page)  # all lines in one batch, as here
    print("the same as RapidOCR's:", mine == [text for _, text, _ in theirs])  # the same as RapidOCR's: True
    print("\n".join(mine))
