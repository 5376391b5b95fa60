"""Trains a transformer on four devices, data and tensor parallel, in however many processes these are, and saves it
after every step: ``train_transformer.py CHECKPOINT STEPS``; to nowhere if that is ``-``."""

import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

import meshwright as mw
from tests.partition.models import setting

mw.distributed.initialize() if "MESHWRIGHT_COORDINATOR" in os.environ else mw.set_engine("xla")
path, steps = sys.argv[1], int(sys.argv[2])
found = setting("transformer", "tensor parallel")
shardings = mw.tree.map(lambda x: x.sharding, found.placed)
step, params, first = found.step, found.placed, 0
if os.path.isdir(path):
    state = mw.load(path, like={"params": shardings, "step": 0})
    params, first = state["params"], state["step"]
wq = params["layers"]["wq"]
own = sorted(shard.device.id for shard in wq.addressable_shards)
print("pid", mw.distributed.process_index(), os.getpid(), "devices", *own, flush=True)
for n in range(first, steps):
    loss, params = step(params, found.split, config=found.config)
    print(f"loss {n} {float(loss):.6f}", flush=True)
    if path != "-":
        mw.save(path, {"params": params, "step": n + 1})
