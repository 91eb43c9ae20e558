# A small language model in PyTorch, as a program: test_framework.py runs it in a Python that has torch.
#
#   torch_model.py make DIRECTORY SHARDS   saves it whole and as shards with an index, and a new weight for one layer
#   torch_model.py tune ARCHIVE SEED       loads an archive, changes one layer and saves all of it in its place
#   torch_model.py run ARCHIVE             loads it from one archive, by load_file and by safe_open, and computes
#
# Prints JSON. The result of the model is a hash of its bits, so results are equal or different, never close.
import hashlib
import json
import sys
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save, save_file
from torch import nn

WIDTH, HEADS, WORDS = 64, 4, 199
PATCHED = "blocks.1.up.weight"
PATCH_FILE = "patch.bin"


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = nn.Linear(WIDTH, 3 * WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        query, key, value = (part.unflatten(-1, (HEADS, WIDTH // HEADS)).transpose(1, 2)
                             for part in self.attention(self.norm(x)).chunk(3, -1))
        weights = torch.softmax(query @ key.transpose(-2, -1) / (WIDTH // HEADS) ** 0.5, -1)
        x = x + (weights @ value).transpose(1, 2).flatten(2)
        return x + self.down(torch.relu(self.up(x)))


class Model(nn.Module):
    """Two types, tensors of several shapes and sizes, none of them of round numbers only."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH).to(torch.bfloat16)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words):
        x = self.embedding(words).float()
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def bytes_of(tensor):
    """By way of the reference library: torch and NumPy are of different ages here and there, and do not always talk."""
    return save({"": tensor.contiguous()})[-tensor.numel() * tensor.element_size():]


def logits(state):
    """The result of the model with these tensors. Each tensor must be in its place, with its shape and type."""
    model = Model().eval()
    own = model.state_dict()
    wrong = [name for name, tensor in state.items() if own[name].dtype != tensor.dtype]
    assert not wrong, f"other types: {wrong}"
    model.load_state_dict(state, strict=True)
    words = torch.arange(4 * 17).mul(31).remainder(WORDS).view(4, 17)
    with torch.no_grad():
        computed = model(words)
    assert computed.isfinite().all() and computed.std() > 0
    return hashlib.sha256(bytes_of(computed)).hexdigest()


def make(directory, shards):
    torch.manual_seed(7)
    state = {name: tensor.clone() for name, tensor in Model().state_dict().items()}
    save_file(state, directory / "whole.safetensors", metadata={"format": "pt"})
    names = [f"model-{at + 1:05}-of-{shards:05}.safetensors" for at in range(shards)]
    weight_map = {name: names[at % shards] for at, name in enumerate(state)}
    (directory / "sharded").mkdir()
    for shard in names:
        save_file({name: state[name] for name in state if weight_map[name] == shard}, directory / "sharded" / shard,
                  metadata={"format": "pt"})
    total = sum(tensor.numel() * tensor.element_size() for tensor in state.values())
    (directory / "sharded" / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}))
    patch = torch.randn(state[PATCHED].shape)
    (directory / PATCH_FILE).write_bytes(bytes_of(patch))
    return {"logits": logits(state), "patched": PATCHED, "patched_logits": logits({**state, PATCHED: patch}),
            "patch_file": PATCH_FILE, "tensors": sorted(state), "torch": torch.__version__}


def run(archive):
    with safe_open(archive, framework="pt", device="cpu") as tensors:
        by_safe_open = logits({name: tensors.get_tensor(name) for name in tensors.keys()})
    return {"load_file": logits(load_file(archive)), "safe_open": by_safe_open}


def tune(archive, seed):
    """Makes a step of training: other values in one layer, and a whole checkpoint."""
    state = load_file(archive)
    torch.manual_seed(seed)
    state[PATCHED] = state[PATCHED] + torch.randn(state[PATCHED].shape) / 8
    save_file(state, archive, metadata={"format": "pt", "step": str(seed)})
    return {"logits": logits(state), "changed": PATCHED}


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "make":
        print(json.dumps(make(Path(sys.argv[2]), int(sys.argv[3]))))
    elif sys.argv[1] == "tune":
        print(json.dumps(tune(sys.argv[2], int(sys.argv[3]))))
    else:
        print(json.dumps(run(sys.argv[2])))
