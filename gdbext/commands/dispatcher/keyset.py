"""``dispatch-keyset``: a DispatchKeySet, decoded, or key names turned into bits."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING

from gdbext.commands.options import TENSOR
from gdbext.commands.reporting import make_report
from gdbext.inspection.expression import NUMBER, number, register_value
from gdbext.model.hexadecimal import Hexadecimal
from gdbext.render.text.views.keyset_view import KeySetSection

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.model.report import Report
    from gdbext.torch.values.key_names import KeyNames

NAME = "dispatch-keyset"

_POINTED = re.compile(rf"\*\s*{NUMBER}")


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    parser.add_argument(
        "value",
        nargs="+",
        metavar="VALUE|EXPR",
        help="bits (0x1000018000), key names (Meta,AutogradMeta), a DispatchKeySet(...) as PyTorch prints it, "
        "a register of the selected thread ($NAME, *$NAME+8), memory (*0x7f...), a tensor's key set (tensor:0x7f...)",
    )


def run(session: Session, args: argparse.Namespace) -> Report:
    """Decodes the value. Raises UsageError for what is not a keyset, NotTorch, LayoutError."""
    keys = session.dispatch_keys
    bits = _bits(session, keys, " ".join(args.value))
    return make_report(session, args, NAME, "keyset", sections=(_section(keys, bits),))


def _bits(session: Session, keys: KeyNames, text: str) -> int:
    word = text.strip()
    tensor = TENSOR.fullmatch(word)
    if tensor:
        return session.tensors.key_set(number(tensor.group(1)))
    pointed = _POINTED.fullmatch(word)
    if pointed:
        return session.memory.u64(number(pointed.group(1)))
    register = register_value(session, word, "the value")
    return keys.parse(word) if register is None else register


def _section(keys: KeyNames, bits: int) -> KeySetSection:
    stray = keys.stray(bits)
    functionalities, backends = keys.building_blocks(bits)
    return KeySetSection(
        bits=Hexadecimal(bits),
        keys=keys.decode(bits),
        text=keys.text(bits),
        functionalities=functionalities,
        backends=backends,
        key=None if stray else keys.highest_key(bits),
        table_index=None if stray else keys.table_index(bits),
        stray_bits=Hexadecimal(stray) if stray else None,
    )
