"""A Chromium that is driven from tests: in a process of its own, through Qt's web engine or as a program.

As a program: `chromium.py BACKEND PAGE WIDTH SCRIPT` opens a page, runs a script in it and prints what that returns,
with all that the page asked the network for and all that the console said, as JSON.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

DEADLINE_S = 90


def backend() -> str | None:
    """`qt`, else `binary` where a Chromium is on the path, else None."""
    try:
        there = importlib.util.find_spec("PyQt6.QtWebEngineCore") is not None
    except ModuleNotFoundError:
        there = False
    return "qt" if there else "binary" if _binary() else None


def _binary() -> str | None:
    return shutil.which("chromium") or shutil.which("google-chrome")


def drive(kind: str, page: Path, width: int, script: str) -> dict[str, Any]:
    """What a script, a function body, returned in a page: `value`, with `requests` and `errors`."""
    words = [sys.executable, __file__, kind, str(page), str(width), script]
    quiet = {"QT_QPA_PLATFORM": "offscreen", "QTWEBENGINE_DISABLE_SANDBOX": "1"}
    flags = {"QTWEBENGINE_CHROMIUM_FLAGS": "--no-sandbox --disable-gpu"}
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=DEADLINE_S, env=os.environ | quiet | flags, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def _qt(page: Path, width: int, script: str, say: Callable[[dict[str, Any]], None]) -> None:
    from PyQt6.QtCore import QTimer, QUrl
    from PyQt6.QtWebEngineCore import QWebEnginePage, QWebEngineProfile, QWebEngineUrlRequestInterceptor
    from PyQt6.QtWebEngineWidgets import QWebEngineView
    from PyQt6.QtWidgets import QApplication

    requests: list[str] = []
    errors: list[str] = []

    class Listening(QWebEngineUrlRequestInterceptor):
        def interceptRequest(self, info: Any) -> None:  # noqa: N802
            requests.append(info.requestUrl().toString())

    class Tab(QWebEnginePage):
        def javaScriptConsoleMessage(self, level: Any, text: str, line: int, source: str) -> None:  # noqa: N802
            if level != QWebEnginePage.JavaScriptConsoleMessageLevel.InfoMessageLevel:
                errors.append(f"{text} (line {line})")

    app = QApplication(sys.argv[:1])
    profile, listening = QWebEngineProfile(), Listening()
    profile.setUrlRequestInterceptor(listening)
    tab, view = Tab(profile), QWebEngineView()
    view.setPage(tab)
    view.resize(width, 800)
    view.show()

    def told(value: str) -> None:
        say({"value": json.loads(value), "requests": requests, "errors": errors})
        sys.stdout.flush()
        os._exit(0)  # Qt takes its time to go, and has nothing to save

    def loaded(_: bool) -> None:
        words = f"JSON.stringify((() => {{ {script} }})() ?? null)"
        QTimer.singleShot(200, lambda: tab.runJavaScript(words, told))

    view.loadFinished.connect(loaded)
    view.load(QUrl.fromLocalFile(str(page.resolve())))
    QTimer.singleShot(1000 * (DEADLINE_S - 10), app.quit)
    app.exec()
    sys.exit("the page did not answer")


def _alone(page: Path, width: int, script: str, say: Callable[[dict[str, Any]], None]) -> None:
    """Headless, with the script at the end of the page; what the page would request, its own policy forbids."""
    told = "document.body.append(Object.assign(document.createElement('pre'), { id: 'told', textContent: answer }))"
    after = f"""<script>
    const faults = []; addEventListener("error", (event) => faults.push(event.message));
    addEventListener("load", () => setTimeout(() => {{
      const value = (() => {{ {script} }})() ?? null;
      const answer = JSON.stringify({{ value, requests: [], errors: faults }});
      {told};
    }}, 200));</script></body>"""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "page.html"
        copy.write_text(page.read_text(encoding="utf-8").replace("</body>", after), encoding="utf-8")
        quiet = ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
        flags = ["--headless", "--no-sandbox", "--disable-gpu", *quiet, f"--user-data-dir={folder}/profile"]
        words = [_binary() or "", *flags, f"--window-size={width},800", "--virtual-time-budget=3000", "--dump-dom"]
        done = subprocess.run([*words, copy.as_uri()], capture_output=True, text=True, timeout=DEADLINE_S, check=True)
    found = re.search('<pre id="told">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found is not None, "the page did not answer"
    say(json.loads(unescape(found[1])))


if __name__ == "__main__":
    _, kind, page, width, script = sys.argv
    drivers = {"qt": _qt, "binary": _alone}
    drivers[kind](Path(page), int(width), script, lambda answer: print(json.dumps(answer)))
