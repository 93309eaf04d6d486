"""Where somebody speaks in a recording: python examples/models/speech.py [FILE.wav].

Silero's voice activity model (package silero-vad); each step's state is the next one's input, in place and never
copied. Compared with onnxruntime's own session.
"""

import sys
import wave
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnxruntime

import teal

RATE, STEP, BEFORE = 16000, 512, 64  # samples a second, in a step, of the step before


def inside(package, path):
    return Path(next(iter(find_spec(package).submodule_search_locations))) / path


def recording(path):
    """16 kHz mono float32."""
    with wave.open(str(path)) as file:
        sound = np.frombuffer(file.readframes(file.getnframes()), np.int16).reshape(-1, file.getnchannels())
        rate = file.getframerate()
    sound = sound.mean(1) / 32768
    return np.interp(np.arange(0, len(sound), rate / RATE), np.arange(len(sound)), sound).astype(np.float32)


def steps(sound):
    """Every step with the end of the one before."""
    padded = np.concatenate([np.zeros(BEFORE, np.float32), sound])
    return [padded[at : at + BEFORE + STEP] for at in range(0, len(sound) - STEP + 1, STEP)]


def resident(model, host, sound):
    """Probability of speech in each step. Two states take turns: what one call writes the next one reads."""
    x, rate = host.empty((1, BEFORE + STEP)), host.empty((), "int64")
    rate.numpy()[...] = RATE
    states, spoken = [host.empty((2, 1, 128)) for _ in range(2)], host.empty((1, 1))
    out = [{"output": spoken, "stateN": state} for state in states]
    calls = [model.prepare(input=x, state=states[1 - i], sr=rate, out=out[i]) for i in range(2)]
    found = []
    for number, step in enumerate(steps(sound)):
        x.numpy()[0] = step
        calls[number % 2]()
        found.append(float(spoken.numpy()[0, 0]))
    return np.array(found)


def in_process(file, sound):
    session, state, found = onnxruntime.InferenceSession(str(file)), np.zeros((2, 1, 128), np.float32), []
    for step in steps(sound):
        spoken, state = session.run(None, {"input": step[None], "state": state, "sr": np.array(RATE)})
        found.append(float(spoken[0, 0]))
    return np.array(found)


if __name__ == "__main__":
    file = inside("silero_vad", "data/silero_vad.onnx")
    sound = recording(sys.argv[1] if len(sys.argv) > 1 else inside("moonshine_onnx", "assets/beckett.wav"))
    with teal.Host() as host:
        model = host.load("vad", file, threads=1)
        mine = resident(model, host, sound)
        print("copies:", model.statistics().copies_in)  # copies: 0
    print(f"speech in {np.mean(mine > 0.5):.0%} of {len(sound) / RATE:.1f} s")  # speech in
    own = in_process(file, sound)
    print("the same as onnxruntime's:", bool(np.allclose(mine, own, atol=1e-5)))  # the same as onnxruntime's: True
