"""The board: does any randomized ensemble help? One row per ensemble, all under the same attack on the same images."""

from typing import TYPE_CHECKING

from recarc.lazy import attach

if TYPE_CHECKING:
    from recarc.board.boards import Board
    from recarc.board.entry import check_entry
    from recarc.board.page import write_board
    from recarc.board.rows import Row
    from recarc.board.scoring import row_of

__getattr__, __dir__, __all__ = attach(__name__)
