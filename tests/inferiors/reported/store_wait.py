"""store-wait: a rank waits for a key that no other rank sets.

Source: https://github.com/pytorch/pytorch/issues/107177, https://github.com/pytorch/pytorch/issues/53840.
"""

from __future__ import annotations

import datetime

import torch.distributed as dist
import truth

store = dist.TCPStore("127.0.0.1", 0, None, True, datetime.timedelta(seconds=truth.FOREVER), wait_for_workers=False)
truth.thread("main", waits=None)
truth.note(verdict="waiting-external", names=["ncclUniqueId/0", str(store.port)])
truth.ready()
store.get("ncclUniqueId/0")
