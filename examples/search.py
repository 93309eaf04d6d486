"""Search a text by meaning with a resident model: python examples/search.py FILE "QUESTION"."""

import sys

import teal
from teal.demo import embedder, search, text

with teal.Host() as host:
    model = host.load("minilm", embedder.model_path(), threads=1)
    passages = text.read([sys.argv[1]]).passages
    vectors = embedder.embed(model, [passage.embedded for passage in passages])
    question = embedder.embed(model, [sys.argv[2]])[0]
    for place, score in search.rank(question, vectors, top=3):
        print(f"{score:.3f} {passages[place].source}:{passages[place].line} {passages[place].text[:100]!r}")
