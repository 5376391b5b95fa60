"""The listings of the document about nested pmap, as printed there."""

SEQUENTIAL = """
def matmul(wA: Tensor[(F, H), 0], x: Tensor[(B, F), 0]):
    xs: Tuple[Tensor[(B/N, F), 1], Tensor[(B/N, F), 2]] = scatter(x, dim=0, devices=[1, 2])
    wAs: Tuple[Tensor[(F, H), 1], Tensor[(F, H), 2]] = broadcast(x, devices=[1, 2])
    as: Tuple[Tensor[(B/N, H), 1], Tensor[(B/N, H), 2]] = pmap(
        lambda d:
        lambda (xi: Tensor[(B/N, F), d], wAi: Tensor[(F, H), d]): {
            ai: Tensor[(B/N, H), d] = MatMul(xi, wAi)
            return ai
        },
        (xs, wAs)
    )
    a: Tensor[(B, H), 0] = gather(as, dim=0, to_device=0)
    return a
"""

DATA_PARALLEL = """
def matmul_dp(wA: Tensor[(F, H), 0], x: Tensor[(B, F), 0]):
    xs: Tuple[Tensor[(B/N, F), 1], Tensor[(B/N, F), 2]] = scatter(x, dim=0, devices=[1, 2])
    wAs: Tuple[Tensor[(F, H), 1], Tensor[(F, H), 2]] = broadcast(x, devices=[1, 2])
    as: Tuple[Tensor[(B/N, H), 1], Tensor[(B/N, H), 2]] = pmap(
        lambda d:
        lambda (xi: Tensor[(B/N, F), d], wAi: Tensor[(F, H), d]): {
            ai: Tensor[(B/N, H), d] = MatMul(xi, wAi)
            return ai
        },
        (xs, wAs)
    )
    a: Tensor[(B, H), 0] = gather(as, dim=0, to_device=0)
    return a
"""

SUB_DEVICES = """
def nested_pmap_tuple(wA: Tensor[(F, H), 0], x: Tensor[(B, F), 0]):
    xs: Tuple[Tensor[(B/2, F), 1], Tensor[(B/2, F), 2]] = scatter(x, dim=0, devices=[1, 2])
    wAs: Tuple[Tensor[(F, H), 1], Tensor[(F, H), 2]] = broadcast(x, devices=[1, 2])
    as: Tuple[Tensor[(B/2, H), 1], Tensor[(B/2, H), 2]] = pmap(
        lambda d:
        lambda (xi: Tensor[(B/2, F), d], wAi: Tensor[(F, H), d]): {
            xis: Tuple[Tensor[(B/2, F), d], Tensor[(B/2, F), d.1]] = broadcast(x, devices=[d, d.1])
            wAis: Tuple[Tensor[(F, H/2), d], Tensor[(F, H/2), d.1]] = scatter(wA, dim=1, devices=[d, d.1])
            ais: Tuple[Tensor[(B/2, H/2), d], Tensor[(B/2, H/2), d.1]] = pmap(
                lambda dd:
                lambda (xij: Tensor[(B/2, F), dd], wAij: Tensor[(F, H/2), dd]): {
                    aij: Tensor[(B/2, H/2)] = Matmul(xij, wAij)
                    return aij
                },
                (xis, wAis)
            )
            ai: Tensor[(B/2, H), d] = gather(ais, dim=1, to_device=d)
            return ai
        },
        device_map={1: [1, 3], 2: [2, 4]},  # this tells simulator what d.1 is
        (xs, wAs)
    )
    a: Tensor[(B, H), 0] = gather(as, dim=0, to_device=0)
    return a
"""

DEVICE_MAPS = """
def nested_pmap_tuple(wA: Tensor[(F, H), 0], x: Tensor[(B, F), 0]):
    device_map = {
        1: [1, 3],
        2: [2, 4],  # etc
    }
    xs: Tuple[Tensor[(B/2, F), 1], Tensor[(B/2, F), 2]] = scatter(x, dim=0, devices=device_map.keys())
    wAs: Tuple[Tensor[(F, H), 1], Tensor[(F, H), 2]] = broadcast(x, devices=device_map.keys())
    as: Tuple[Tensor[(B/2, H), 1], Tensor[(B/2, H), 2]] = pmap(
        lambda d:
        lambda (xi: Tensor[(B/2, F), d], wAi: Tensor[(F, H), d]): {
            xis: Tuple[Tensor[(B/2, F), ?], Tensor[(B/2, F), ?]] = broadcast(x, devices=device_map[d])
            wAis: Tuple[Tensor[(F, H/2), ?], Tensor[(F, H/2), ?]] = scatter(wA, dim=1, devices=device_map[d])
            ais: Tuple[Tensor[(B/2, H/2), ?], Tensor[(B/2, H/2), ?]] = pmap(
                lambda dd:
                lambda (xij: Tensor[(B/2, F), dd], wAij: Tensor[(F, H/2), dd]): {
                    aij: Tensor[(B/2, H/2)] = Matmul(xij, wAij)
                    return aij
                },
                (xis, wAis)
            )
            ai: Tensor[(B/2, H), d] = gather(ais, dim=1, to_device=d)
            return ai
        },
        (xs, wAs)
    )
    a: Tensor[(B, H), 0] = gather(as, dim=0, to_device=0)
    return a
"""

DEVICE_ARITHMETIC = """
# Use device arithmetic -- hard to ensure disjoint devices
def nested_pmap(wA: Tensor[(F, H), 0], x: Tensor[(B, F), 0]):
    device_tree = (...)
    xs: Tuple[Tensor[(B/2, F), 1], Tensor[(B/2, F), 3]] = scatter(x, dim=0, devices=[1, 3])
    wAs: Tuple[Tensor[(F, H), 1], Tensor[(F, H), 3]] = broadcast(x, devices=[1, 3])
    as: Tuple[Tensor[(B/2, H), 1], Tensor[(B/2, H), 3]] = pmap(
        lambda d:
        lambda (xi: Tensor[(B/2, F), d], wAi: Tensor[(F, H), d]): {
            xis: Tuple[Tensor[(B/2, F), d], Tensor[(B/2, F), d+1]] = broadcast(x, devices=[d, d+1])
            wAis: Tuple[Tensor[(F, H/2), d], Tensor[(F, H/2), d+1]] = scatter(wA, dim=1, devices=[d, d+1])
            ais: Tuple[Tensor[(B/2, H/2), d], Tensor[(B/2, H/2), d+1]] = pmap(
                lambda dd:
                lambda (xij: Tensor[(B/2, F), dd], wAij: Tensor[(F, H/2), dd]): {
                    aij: Tensor[(B/2, H/2)] = Matmul(xij, wAij)
                    return aij
                },
                (xis, wAis)
            )
            ai: Tensor[(B/2, H), d] = gather(ais, dim=1, to_device=d)
            return ai
        },
        (xs, wAs)
    )
    a: Tensor[(B, H), 0] = gather(as, dim=0, to_device=0)
    return a
"""

PROPOSAL_DATA_PARALLEL = """
def matmul(wA: Tensor[(F, H), 0], wB: Tensor[(H, C), 0], x: Tensor[(B, F), 0]):
    device_map: DeviceMap = {1: [1, 3], 2: [2, 4]}
    xs_dp: Tuple[Tensor[(B/2, F), 1], Tensor[(B/2, F), 2]] = scatter(x, dim=0, device_keys=[])
    wAs_dp: Tuple[Tensor[(F, H), 1], Tensor[(F, H), 2]] = broadcast(wA, device_keys=[])
    wBs_dp: Tuple[Tensor[(H, C), 1], Tensor[(H, C), 2]] = broadcast(wB, device_keys=[])
    ys_dp: Tuple[Tensor[(B/2, C), 1], Tensor[(B/2, C), 2]] = pmap(
        lambda d:
        lambda (xi: Tensor[(B/2, F), d], wAi: Tensor[(F, H), d], wBi: Tensor[(H, C), d]): {
            ai: Tensor[(B/2, H), d] = MatMul(xi, wAi)
            yi: Tensor[(B/2, C), d] = MatMul(ai, wBi)
            return yi
        },
        (xs_dp, wAs_dp, wBs_dp)
    )
    y: Tensor[(B, C), 0] = gather(ys_dp, dim=0, to_device=0)
    return y
"""

PROPOSAL_NESTED = """
def matmul(wA: Tensor[(F, H), 0], wB: Tensor[(H, C), 0], x: Tensor[(B, F), 0]):
    device_map: DeviceMap = {1: [1, 3], 2: [2, 4]}
    xs_dp: Tuple[Tensor[(B/2, F), ?], Tensor[(B/2, F), ?]] = scatter(x, dim=0, device_keys=[])
    wAs_dp: Tuple[Tensor[(F, H), ?], Tensor[(F, H), ?]] = broadcast(wA, device_keys=[])
    wBs_dp: Tuple[Tensor[(H, C), ?], Tensor[(H, C), ?]] = broadcast(wB, device_keys=[])
    ys_dp: Tuple[Tensor[(B/2, C), ?], Tensor[(B/2, C), ?]] = pmap(
        lambda d:
        lambda (xi: Tensor[(B/N, F), d], wAi: Tensor[(F, H), d], wBi: Tensor[(H, C), d]): {
            xs_hp: Tuple[Tensor[(B/2, F), ?], Tensor[(B/2, F), ?]] = broadcast(x, device_keys=[d])
            wAs_hp: Tuple[Tensor[(F, H/2), ?], Tensor[(F, H/2), ?]] = scatter(wA, dim=1, device_keys=[d])
            wBs_hp: Tuple[Tensor[(H/2, C), ?], Tensor[(H/2, C), ?]] = scatter(wB, dim=0, device_keys=[d])
            ys_hp: Tuple[Tensor[(B/2, C), ?], Tensor[(B/2, C), ?]] = pmap(
                lambda dd:
                lambda (xi: Tensor[(B/2, F), dd], wAi: Tensor[(F, H/2), dd], wBi: Tensor[(H/2, C), dd]): {
                    ai_hp: Tensor[(B/2, H/2), ?] = MatMul(xi, wAi)
                    yi_hp: Tensor[(B/2, C), ?] = MatMul(ai, wBi)
                    return yi_hp
                },
                (xs_hp, wAs_hp, wBs_hp)
            )
            y_hp: Tuple[Tensor[(B/2, C), ?], Tensor[(B/2, C), ?] = allreduce(ys_hp)
            return y_hp
        },
        (xs_dp, wAs_dp, wBs_dp)
    )
    y: Tensor[(B, C), 0] = gather(ys_dp, dim=0, to_device=0)
    return y
"""
