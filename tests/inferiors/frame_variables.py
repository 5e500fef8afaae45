"""A kernel in Python with variables of many kinds, that waits for a lock; the truth holds the text of each variable."""

import collections
import threading

import torch
import truth

library = torch.library.Library("frame_variables", "DEF")
library.define("scale(Tensor x, float by, int[] dims, *, bool fast=False) -> Tensor")
never = threading.Lock()
never.acquire()


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3, 4, dtype=torch.bfloat16))


class Named(int):
    pass


def texts(variables, special):
    shown = {name: repr(value) for name, value in variables.items()}
    shown.update(special)
    return shown


def scale_cpu(x, by, dims, *, fast=False):
    number, big, half, nothing, yes = 12, -(10**30), 0.1, None, True
    text, name = "hello " * 40, "don't"
    batch, items, pair = [x, x.to(torch.int64)], list(range(100)), (1, "two")
    password, few, many = "open", {"a": 1, "b": [1, 2]}, {str(key): key for key in range(7)}
    held, free, again = threading.Lock(), threading.Lock(), threading.RLock()
    held.acquire()
    again.acquire()
    done, came = threading.Event(), threading.Event()
    came.set()
    unique, waiting, kind, named = {1, 2, 3}, collections.deque([1, 2]), Net, Named(5)
    weight, config = kind().weight, {"api_key": "sesame", "user": "me"}
    truth.thread("main", waits="futex")
    truth.note(variables=texts(
        {"by": by, "dims": dims, "fast": fast, "number": number, "big": big, "half": half, "nothing": nothing,
         "yes": yes, "name": name, "pair": pair, "few": few},
        {"x": "f32[8, 16] cpu", "batch": "[f32[8, 16] cpu, i64[8, 16] cpu]", "weight": "bf16[3, 4] cpu",
         "items": "[0, 1, 2, 3, … 100 items]", "many": "{'0': 0, '1': 1, '2': 2, '3': 3, … 7 keys}",
         "text": "'hello hello hello hello hello hello…' (240 characters)", "held": "<lock held>",
         "free": "<lock free>",
         "again":
             f"<rlock held by thread {threading.get_native_id()}>", "done": "<Event not set>",
         "came": "<Event set>", "unique": "<set of 3>", "waiting": "<deque of 2>", "kind": "<class Net>",
         "named": "Named(5)", "password": "(hidden)", "config": "{'api_key': (hidden), 'user': 'me'}"},
    ))
    truth.ready()
    never.acquire()
    return x * by


def train(step):
    loss = torch.ones(8, 16)
    return torch.ops.frame_variables.scale(loss, 2.5, [1, 2], fast=True)


library.impl("scale", scale_cpu, "CPU")
train(7)
