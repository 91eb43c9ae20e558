"""An archive as the reference library parses it. Two archives compare equal whatever the order of their data is."""

import json

import safetensors


def parsed(path):
    """Returns {name: (dtype, shape, bytes)}, and the metadata or None."""
    content = path.read_bytes()
    tensors = {name: (row["dtype"], row["shape"], bytes(row["data"])) for name, row in safetensors.deserialize(content)}
    header = json.loads(content[8:8 + int.from_bytes(content[:8], "little")])
    return tensors, header.get("__metadata__")
