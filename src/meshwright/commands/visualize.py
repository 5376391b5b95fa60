"""``meshwright visualize``: which devices hold which part of a tensor."""

from __future__ import annotations

import argparse
import json

from meshwright.chart.page import picture_part, write_sheet
from meshwright.errors import MeshwrightError
from meshwright.report.visualize import facts, mesh_facts, picture
from meshwright.sharding.text_command import read_mesh, read_shape, read_spec


def describe(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.description = "Draw which devices hold which part of a tensor; without SPEC, the devices of the mesh."
    spec_help = "x,y or '(x,y),None' or 'x:(1)2,unreduced={y}' or the sdy grammar"
    parser.add_argument("spec", metavar="SPEC", nargs="?", help=spec_help)
    parser.add_argument("--mesh", required=True, help="x=2,y=4 (or sdy: '<[\"x\"=2]>')")
    parser.add_argument("--shape", help="64x64; needed with SPEC")
    parser.add_argument("--kind", default="cpu", help="what the devices are called: cpu, tpu, gpu (default: cpu)")
    parser.add_argument("--json", action="store_true", help="print the blocks and their devices as JSON")
    parser.add_argument("--html", metavar="FILE", help="write the picture to FILE as a page instead of printing it")


def run(args: argparse.Namespace) -> int:
    """Draw the sharding, or the mesh."""
    mesh = read_mesh(args.mesh, args.kind)
    if args.spec is None and args.shape is None:
        title, drawn = f"Mesh {mesh}", picture(mesh)
        found = mesh_facts(mesh) if args.json else {}
    elif args.shape is None:
        raise MeshwrightError(
            "A sharding is drawn for a shape.", why="--shape is missing", fix=f"--shape 64x64 '{args.spec}'"
        )
    else:
        shape = read_shape(args.shape)
        sharding = read_spec(args.spec or "", mesh, shape)
        title, drawn = f"{args.shape} {sharding}", picture(shape, sharding)
        found = facts(shape, sharding) if args.json else {}
    if args.html is not None:
        write_sheet(args.html, title, [picture_part("", drawn.html())])
    if args.json:
        print(json.dumps(found, indent=2))
    elif args.html is None:
        drawn.show()
    return 0
