# Calls the reference library and stfs with the same arguments, and compares results and exceptions.
import numpy as np
import safetensors
import stfs


def outcome(call):
    """What a call returns, or the exception that it raises."""
    try:
        return call()
    except Exception as error:
        return error


def is_same(ours, theirs):
    """Whether two outcomes are the same for a program. An exception of ours may be of a subclass."""
    if isinstance(theirs, Exception):
        kind = stfs.SafetensorError if isinstance(theirs, safetensors.SafetensorError) else type(theirs)
        return isinstance(ours, kind)
    if isinstance(theirs, np.ndarray):
        return (type(ours), ours.dtype, ours.shape, ours.tobytes(), ours.flags.writeable) == \
            (type(theirs), theirs.dtype, theirs.shape, theirs.tobytes(), theirs.flags.writeable)
    if isinstance(theirs, dict):
        return type(ours) is dict and list(ours) == list(theirs) and all(is_same(ours[key], theirs[key]) for key in theirs)
    return type(ours) is type(theirs) and ours == theirs


def check_same(call, named=""):
    """`call(package)` has the same outcome for both libraries. Returns the outcome of ours."""
    ours, theirs = outcome(lambda: call(stfs)), outcome(lambda: call(safetensors))
    assert is_same(ours, theirs), f"{named}: {ours!r} instead of {theirs!r}"
    return ours
