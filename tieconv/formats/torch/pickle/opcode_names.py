"""Names of pickle opcodes for messages. A copy, because `pickletools` imports the `pickle` module."""

from __future__ import annotations

_NAMES = """
    28:MARK 29:EMPTY_TUPLE 2e:STOP 30:POP 31:POP_MARK 32:DUP 42:BINBYTES 43:SHORT_BINBYTES 46:FLOAT 47:BINFLOAT
    49:INT 4a:BININT 4b:BININT1 4c:LONG 4d:BININT2 4e:NONE 50:PERSID 51:BINPERSID 52:REDUCE 53:STRING 54:BINSTRING
    55:SHORT_BINSTRING 56:UNICODE 58:BINUNICODE 5d:EMPTY_LIST 61:APPEND 62:BUILD 63:GLOBAL 64:DICT 65:APPENDS 67:GET
    68:BINGET 69:INST 6a:LONG_BINGET 6c:LIST 6f:OBJ 70:PUT 71:BINPUT 72:LONG_BINPUT 73:SETITEM 74:TUPLE 75:SETITEMS
    7d:EMPTY_DICT 80:PROTO 81:NEWOBJ 82:EXT1 83:EXT2 84:EXT4 85:TUPLE1 86:TUPLE2 87:TUPLE3 88:NEWTRUE 89:NEWFALSE
    8a:LONG1 8b:LONG4 8c:SHORT_BINUNICODE 8d:BINUNICODE8 8e:BINBYTES8 8f:EMPTY_SET 90:ADDITEMS 91:FROZENSET
    92:NEWOBJ_EX 93:STACK_GLOBAL 94:MEMOIZE 95:FRAME 96:BYTEARRAY8 97:NEXT_BUFFER 98:READONLY_BUFFER
"""
"""The byte of each opcode and its name in `pickletools`."""


def opcode_name(opcode: int) -> str:
    """Return the name of an opcode, or its number if no protocol has it."""
    number = f"{opcode:02x}"
    names = dict(word.split(":") for word in _NAMES.split())
    return names.get(number, f"0x{number}")
