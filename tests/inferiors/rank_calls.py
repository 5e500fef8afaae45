"""rank-calls: what calls of torch.distributed keep in their variables. Argument: the scenario.

``rank``: a rank that its arguments name, and not the environment, waits for another one, while it handles an exception.
``agent``: torchrun's agent waits for another node.
"""

import os
import sys

import truth

truth.thread("main", waits=None)
if sys.argv[1] == "rank":
    import torch.distributed as dist

    os.environ.update(RANK="0", WORLD_SIZE="5")
    truth.note(says=["while it handles ValueError('bad batch 7')"], rank=1, size=2)
    truth.ready()
    try:
        raise ValueError("bad batch 7")
    except ValueError:
        dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/meet", rank=1, world_size=2)
else:
    from torch.distributed.run import main

    where = "127.0.0.1:0"
    truth.note(says=["the rendezvous 'job7' at 127.0.0.1:0, which 1 of 2 nodes have joined"])
    truth.ready()
    main(["--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint={where}", "--rdzv-id=job7",
          "--rdzv-conf=is_host=1", "none.py"])
