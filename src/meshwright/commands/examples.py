"""An example or two of every command, which its ``--help`` ends with. Tests run them all.

``model.py`` stands for a file of the user's with ``def example(): return mw.jit(f), (params, batch)``.
"""

from __future__ import annotations

EXAMPLES: dict[str, tuple[str, ...]] = {
    "tour": ("meshwright tour", "meshwright tour sharding"),
    "calibrate": ("meshwright calibrate --out chip.json", "meshwright calibrate --from raw.json"),
    "completion": ("meshwright completion bash",),
    "cost": ("meshwright cost model.py:example --hardware h100",),
    "diff": (
        "meshwright diff model.py:before model.py:example --hardware h100",
        "meshwright diff saved.json model.py:example --exit-code",
    ),
    "explain": (
        "meshwright explain model.py:example --axis model --top 5",
        "meshwright explain model.py:example --value 'result[0]'",
        "meshwright explain model.py:example --json > saved.json",
    ),
    "kernel": (
        "meshwright kernel model.py:kernel --picture",
        "meshwright kernel model.py:gathered --args 'bf16[256,2048] bf16[2048,4096]' --hardware 'tpu v5e 4'",
    ),
    "launch": ("meshwright launch -n 2 script.py",),
    "layout": ("meshwright layout model.py --chips 8 --hardware h100",),
    "matmul": ("meshwright matmul 'A[I_x,J] @ B[J,K_y] -> C[I,K]' --mesh x=2,y=2 --size I=1024,J=1024,K=1024",),
    "opt": ("meshwright opt module.mlir -sdy-propagation-pipeline",),
    "report": ("meshwright report model.py:example -o out.html --hardware h100",),
    "reshard": ("meshwright reshard --mesh x=2,y=4 --shape 64x64 x,y '(x,y)'",),
    "rules": ("meshwright rules dot_general",),
    "run-jax": ("meshwright run-jax --devices 8 script.py",),
    "schema": ("meshwright schema explain",),
    "search": ("meshwright search --model mlp:16x8192 --chips 8 --hardware h100 --batch 64",),
    "serving": ("meshwright serving --model llama3-8b --chips 8 --hardware h100 --latency 50ms --context 2048",),
    "simulate": (
        "meshwright simulate model.py:example --hardware 'tpu v5e 2x4'",
        "meshwright simulate --transformer llama3-8b --strategy data=2,tensor=8 --batch 16 --hardware h100",
    ),
    "stages": ("meshwright stages model.py:example --stage partition",),
    "visualize": ("meshwright visualize x,y --mesh x=2,y=4 --shape 64x64",),
}
