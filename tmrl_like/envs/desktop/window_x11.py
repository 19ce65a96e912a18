"""Windows of an X server, through python-xlib."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tmrl_like.envs.desktop.desktop_screen import Region
from tmrl_like.envs.display import open_x11
from tmrl_like.errors import EnvironmentAwayError


class X11Window:
    """The windows of the X server that DISPLAY names and, once `open` has chosen one, that window.

    Methods that use the chosen window raise EnvironmentAwayError when it is gone.
    """

    def __init__(self) -> None:
        self._display = open_x11()
        from Xlib import error

        # ignores errors of requests without a reply; the next request with a reply raises
        self._display.set_error_handler(lambda *_: None)
        self._root = self._display.screen().root
        self._gone = error.XError, error.ConnectionClosedError

    def titles(self) -> dict[int, str]:
        """Return the titles of all visible windows, by window number."""
        from Xlib import X, Xatom, error

        found: dict[int, str] = {}
        newer_name = self._display.get_atom("_NET_WM_NAME")
        windows = self._root.query_tree().children
        while windows:
            with contextlib.suppress(error.XError):  # the window has gone in the meantime
                window = windows.pop(0)
                windows += window.query_tree().children
                is_visible = window.get_attributes().map_state == X.IsViewable
                for name, encoding in ((Xatom.WM_NAME, "latin-1"), (newer_name, "utf-8")):
                    title = window.get_full_property(name, X.AnyPropertyType)
                    if is_visible and title is not None and title.value:
                        found[window.id] = bytes(title.value).decode(encoding, "replace")
        return found

    def open(self, handle: int, title: str) -> X11Window:
        self._window, self._title = self._display.create_resource_object("window", handle), title
        return self

    def region(self) -> Region:
        """Return where the window's contents are on the screen, without title bar and borders."""
        with self._not_gone():
            size = self._window.get_geometry()
            corner = self._root.translate_coords(self._window, 0, 0)
        return Region(corner.x, corner.y, size.width, size.height)

    def place(self, region: Region) -> None:
        """Move and resize the window so that its contents fill `region`; a window manager may
        override this.
        """
        with self._not_gone():
            self._window.configure(
                x=region.left, y=region.top, width=region.width, height=region.height
            )
            self._display.sync()

    def has_focus(self) -> bool:
        """Whether the window has the keyboard focus."""
        with self._not_gone():
            focused = self._display.get_input_focus().focus
            while not isinstance(focused, int) and focused != self._root:
                if focused == self._window:
                    return True
                focused = focused.query_tree().parent  # toolkits let a child have the focus
            self._window.get_geometry()
        return False

    def raise_and_focus(self) -> None:
        """Bring the window to the front and give it the focus, without waiting for that."""
        from Xlib import X
        from Xlib.protocol import event

        with self._not_gone():
            atom = self._display.get_atom
            # there is a window manager
            if self._root.get_full_property(atom("_NET_SUPPORTING_WM_CHECK"), 0) is not None:
                # 2: the request comes from a tool, not from the application itself
                data = (32, [2, X.CurrentTime, 0, 0, 0])
                ask = event.ClientMessage(
                    window=self._window, client_type=atom("_NET_ACTIVE_WINDOW"), data=data
                )
                self._root.send_event(
                    ask, event_mask=X.SubstructureRedirectMask | X.SubstructureNotifyMask
                )
            else:
                self._window.configure(stack_mode=X.Above)
                self._window.set_input_focus(X.RevertToParent, X.CurrentTime)
            self._display.sync()

    @contextlib.contextmanager
    def _not_gone(self) -> Iterator[None]:
        try:
            yield
        except self._gone:
            raise EnvironmentAwayError(f"the game's window {self._title!r} is gone") from None

    def close(self) -> None:
        """Close the connection; the window itself stays. Calling it twice is fine."""
        with contextlib.suppress(*self._gone):
            self._display.close()
