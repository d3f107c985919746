"""The server's page in headless Chromium, as its users meet it: with the keyboard, in light and dark, wide and narrow.

usage: page.py BASE_URL KEY CHROMIUM CHROMEDRIVER
The server asks for KEY, and drafts in every round. Whatever the browser complains of, violations of the page's content security policy among them, is a failure.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

BASE, KEY, CHROMIUM, CHROMEDRIVER = sys.argv[1:]
ASKED = "Write a Python function that adds two numbers, then one that subtracts, multiplies and divides."
ENTER, TAB, ESCAPE, SPACE, SHIFT, CONTROL = "\ue007", "\ue004", "\ue00c", " ", "\ue008", "\ue009"
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def call(method, url, body=None, headers={}):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"} | headers, method=method)
    try:
        return json.load(urllib.request.urlopen(request, timeout=120))
    except urllib.error.HTTPError as error:
        raise AssertionError("%s %s: %s" % (method, url, error.read().decode())) from None


class Browser:
    """A session of the W3C WebDriver protocol."""

    def __init__(self, directory):
        command = [CHROMEDRIVER, "--port=0"]
        self.driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        port = next(m[1] for line in self.driver.stdout if (m := re.search(r"started successfully on port (\d+)", line)))
        options = {"binary": shutil.which(CHROMIUM), "args": FLAGS + ["--user-data-dir=" + directory, "--window-size=1280,900"]}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        url = "http://127.0.0.1:%s/session" % port
        session = call("POST", url, {"capabilities": {"alwaysMatch": wanted}})["value"]["sessionId"]
        self.url = url + "/" + session

    def close(self):
        try:
            call("DELETE", self.url)
        finally:
            self.driver.terminate()
            self.driver.wait()

    def do(self, command, body):
        return call("POST", self.url + command, body)["value"]

    def run(self, script, *args):
        return self.do("/execute/sync", {"script": script, "args": list(args)})

    def devtools(self, command, **params):
        return self.do("/goog/cdp/execute", {"cmd": command, "params": params})

    def log(self):
        return self.do("/se/log", {"type": "browser"})

    def press(self, *keys):
        """Presses keys one after the other; `(SHIFT, TAB)` is Tab with Shift held."""
        actions = []
        for key in keys:
            held, key = key if isinstance(key, tuple) else (None, key)
            actions += [{"type": "keyDown", "value": held}] * (held is not None)
            actions += [{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]
            actions += [{"type": "keyUp", "value": held}] * (held is not None)
        self.do("/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def type(self, text):
        self.press(*[(SHIFT, ENTER) if c == "\n" else c for c in text])

    def look(self, width, height, scheme):
        """Makes the view so large, light or dark."""
        self.devtools("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])


def wait(what, holds, seconds=60):
    end = time.monotonic() + seconds
    while not (value := holds()):
        assert time.monotonic() < end, "not in %d s: %s\n%s" % (seconds, what, browser.run("return document.body.innerText"))
        time.sleep(0.05)
    return value


def text(selector):
    return browser.run("return document.querySelector(arguments[0])?.textContent ?? null", selector)


def count(selector):
    return browser.run("return document.querySelectorAll(arguments[0]).length", selector)


def idle():
    return browser.run("return document.getElementById('stop').hidden")


def focused():
    return browser.run("return document.activeElement.id")


def tab_to(name, key=TAB):
    """Goes there by Tab alone; wherever the focus is on the way, it shows."""
    for _ in range(40):
        if focused() == name:
            return
        browser.press(key)
        style = browser.run(
            "const e = document.activeElement, s = getComputedStyle(e); return e === document.body ? null : [e.id, s.outlineStyle, s.outlineWidth]"
        )
        assert style is None or style[1] != "none" and style[2] != "0px", "no visible focus: %s" % style
    raise AssertionError("the keyboard does not reach " + name)


def settings(**values):
    tab_to("settings-button")
    browser.press(ENTER)
    assert browser.run("return document.getElementById('settings').open")
    for name, value in values.items():
        tab_to(name.replace("_", "-"))
        browser.press((CONTROL, "a"), *value)
    tab_to("settings-close")
    browser.press(ENTER)
    assert not browser.run("return document.getElementById('settings').open")


def send(message):
    tab_to("message")
    browser.type(message)
    browser.press(ENTER)


def answer():
    """The text of the latest answer, as it would be read and copied: without what was rejected."""
    return browser.run(
        """const answer = [...document.querySelectorAll('.answer')].at(-1);
        const line = (line) => [...line.childNodes].filter((n) => !n.classList?.contains('rejected')).map((n) => n.textContent).join('');
        return answer && [...answer.querySelectorAll('.line')].map(line).join('\\n');"""
    )


def asked():
    """The bodies of all requests for answers since the last call."""
    return browser.run("return window.asked.splice(0)")


def test_a_key_is_asked_for():
    browser.do("/url", {"url": BASE + "/"})
    browser.run("window.asked = []; const f = fetch; window.fetch = (u, o) => (o.body && asked.push(JSON.parse(o.body)), f(u, o))")
    wait("the server's words", lambda: "an API key is needed" in (text("#notice") or ""))
    assert focused() == "message"
    settings(key="wrong")
    wait("the server's words", lambda: "the API key is wrong" in text("#notice"))
    send("Is this\nthe key?")
    wait("an error in its place", lambda: text(".exchange .error"))
    assert "the API key is wrong" in text(".exchange .error") and count(".exchange .error[role=alert]") == 1
    assert browser.run("return document.getElementById('message').value") == "Is this\nthe key?", "nothing typed is lost"
    browser.press((CONTROL, "a"), "\ue017")
    settings(key=KEY, temperature="0", max_tokens="120")
    wait("the model", lambda: text("#model"))
    assert browser.run("return document.getElementById('notice').hidden")
    assert KEY not in browser.run("return JSON.stringify(localStorage) + document.cookie + location.href")
    asked()


def test_tokens_arrive_and_are_told_apart():
    send(ASKED)
    seen = set()
    while not idle():
        seen.add(len(answer() or ""))
    assert len(seen) > 3, "it comes bit by bit: %s" % seen
    assert count(".failed") == 0 and focused() == "message"
    body = asked()[0]
    assert [m["role"] for m in body["messages"]] == ["user"] and body["temperature"] == 0 and body["max_tokens"] == 120
    plain = {k: v for k, v in body.items() if k in ("messages", "temperature", "max_tokens")} | {"speculation": False}
    whole = call("POST", BASE + "/v1/chat/completions", plain, {"authorization": "Bearer " + KEY})
    assert answer() == whole["choices"][0]["message"]["content"], answer()
    styles = browser.run(
        """const answer = document.querySelector('.answer');
        const own = [...answer.querySelectorAll('.line')].flatMap((l) => [...l.childNodes]).find((n) => n.nodeType === Node.TEXT_NODE);
        const of = (e) => e && getComputedStyle(e).textDecorationLine;
        return [own && of(own.parentElement), of(answer.querySelector('.accepted')), of(answer.querySelector('.rejected'))];"""
    )
    assert styles == ["none", "underline", "line-through"], styles
    assert browser.run("return [...document.querySelectorAll('.accepted[data-source]')].every((e) => e.dataset.source)")
    assert count("#legend .accepted:not([hidden])") == len(model()["drafters"])
    tab_to("show-rejected", (SHIFT, TAB))
    browser.press(SPACE)
    assert browser.run("return getComputedStyle(document.querySelector('.answer .rejected')).display") == "none"
    browser.press(SPACE)
    assert browser.run("return getComputedStyle(document.querySelector('.answer .rejected')).display") != "none"
    assert "Answer complete" in text("#status") and "tokens/s" in text(".foot")


def model():
    return call("GET", BASE + "/v1/models", headers={"authorization": "Bearer " + KEY})["data"][0]


def test_figures():
    assert float(text("#rate")) > 1 and float(text("#per-round")) > 1
    assert re.fullmatch(r"[1-9]\d* of [1-9]\d*", text("#accepted"))
    assert 1 <= count("#rounds li") <= 6
    assert browser.run("return [...document.querySelectorAll('#rounds li')].every((li) => li.children[0].textContent && li.children[1].textContent)")
    for plot in ("rounds", "cost", "acceptance"):
        assert browser.run("return document.querySelector(arguments[0]).getAttribute('aria-label').length", "#%s-plot svg[role=img]" % plot) > 9
    assert count("#cost-plot .point") == len(model()["pass_seconds"]) and count("#cost-plot tbody tr") >= 4
    assert count("#acceptance-plot .took") >= 1 and count("#acceptance-plot tbody tr") >= 1


def test_markup_is_text():
    browser.press((CONTROL, "a"), "\ue017")
    markup = "Repeat: <b id=bold>x</b><img src=x onerror=\"document.title='changed'\"><script>document.title='changed'</script> & &lt;"
    title = browser.run("return document.title")
    send(markup)
    wait("an answer", idle)
    assert text(".exchange:last-of-type .question") == markup
    assert count("#conversation :is(b, img, script)") == 0 and browser.run("return document.title") == title
    # The conversation is sent as it was.
    messages = asked()[0]["messages"]
    assert [m["role"] for m in messages] == ["user", "assistant", "user"] and messages[0]["content"] == ASKED and messages[1]["content"]


def test_stopping_and_speculation():
    settings(max_tokens="1500")
    tab_to("speculation")
    browser.press(*"off")
    send("Count from one to a thousand, in words.")
    wait("some text", lambda: len(answer() or "") > 10)
    browser.press(ESCAPE)
    wait("it stops", idle, 5)
    assert asked()[0]["speculation"] is False
    assert count(".exchange:last-of-type .accepted") == 0 and "stopped" in text(".exchange:last-of-type .foot")
    kept = answer()
    wait("the server stops, too", lambda: b"foretoken:running 0" in metrics(), 10)
    tab_to("speculation")
    browser.press(*"where")
    stream(chunk(1, ("And", None)), end=False)
    send("Go on.")
    wait("some text", lambda: answer() == "And")
    tab_to("stop")
    browser.press(ENTER)
    wait("it stops", idle, 5)
    body = asked()[0]
    assert body["speculation"] is True and body["messages"][-2] == {"role": "assistant", "content": kept}
    assert answer() == "And" and focused() == "message"


def metrics():
    request = urllib.request.Request(BASE + "/metrics", headers={"authorization": "Bearer " + KEY})
    return urllib.request.urlopen(request).read()


def test_what_is_folded_out_stays():
    tab_to("panel")
    browser.press(TAB, ENTER)
    focus = "return [document.activeElement.localName, document.activeElement.closest('figure')?.id, document.activeElement.parentElement.open]"
    assert browser.run(focus) == ["summary", "cost-plot", True]
    rows = text("#cost-plot tbody")
    stream(chunk(1, ("One", None)), chunk(4, (" two three", "suffix"), (".", None)), "[DONE]")
    browser.run("document.getElementById('message').value = 'x'; document.getElementById('composer').requestSubmit()")
    wait("other figures", lambda: text("#cost-plot tbody") != rows)
    assert browser.run(focus) == ["summary", "cost-plot", True], "drawn anew, it keeps the focus"


def test_a_refusal_is_shown_where_the_answer_would_be():
    tab_to("message")
    browser.press((CONTROL, "a"), "\ue017")
    before = count(".exchange")
    browser.run("document.getElementById('message').value = 'word '.repeat(5000)")
    browser.press(ENTER)
    wait("an error", lambda: text(".failed .error"))
    assert "context" in text(".failed .error") and count(".exchange") == before + 1
    browser.press((CONTROL, "a"), "\ue017")
    asked()


def stream(*events, end=True):
    """Answers the next request with these events instead of the server; the stream ends, or goes on in silence."""
    lines = ["data: " + (e if isinstance(e, str) else json.dumps(e)) + "\n\n" for e in events]
    browser.run(
        """const [lines, end] = arguments, real = window.fetch;
        window.fetch = (_, { body, signal }) => {
            window.fetch = real;
            asked.push(JSON.parse(body));
            return Promise.resolve(new Response(new ReadableStream({ start(stream) {
                // In bytes that split characters and lines.
                const bytes = new TextEncoder().encode(lines.join(''));
                for (let at = 0; at < bytes.length; at += 7) stream.enqueue(bytes.slice(at, at + 7));
                if (end) stream.close();
                signal.addEventListener('abort', () => stream.error(signal.reason));
            } })));
        };""",
        lines,
        end,
    )


def chunk(tokens, *pieces, rejected="", finish=None):
    round = {"rows": 4, "drafted": {"suffix": 3}, "accepted": 2, "tokens": 3, "predicted_tokens": 2.5, "predicted_s": 0.01}
    round |= {"draft_s": 0.0, "pass_s": 0.01, "plain_tps": 100, "plain": None}
    drafts = [{"text": [{"text": t, "source": s} for t, s in pieces], "rejected": rejected, "round": round}]
    return {"choices": [{"index": 0, "delta": {}, "finish_reason": finish, "drafts": drafts}], "usage": {"completion_tokens": tokens}}


def test_what_answers_may_hold():
    tab_to("new")
    browser.press(ENTER)
    said = "Code 漢字 👩‍💻:\n``` rust\nfn a() {}\n\n    b(\"<i>\")\n```\nשלום עולם, 1 + 1\n\nمرحبا"
    stream(
        chunk(1, ("Code 漢", None)),
        chunk(4, ("字 👩‍💻:\n`", "suffix"), ("``", None), rejected="\n\n"),
        chunk(8, (" rust\nfn a() {}\n\n", "suffix"), ("    b(\"<i>\")\n", "recycling"), ("```\n", None), rejected="``` <b>no</b>"),
        chunk(12, ("שלום עולם, ", "model"), ("1 + 1\n\nمرحبا", None), rejected="never"),
        chunk(12, finish="stop"),
        "[DONE]",
    )
    send("x")
    wait("it is over", lambda: idle() and answer() == said)
    last = ".exchange:last-of-type "
    code = text(last + ".code")
    assert code == "`↵↵`` rustfn a() {}    b(\"<i>\")``` <b>no</b>```" and count(last + ".code .fence") == 2, code
    assert count(last + ".code") == 1 and count(last + ".answer .prose") == 2 and count(last + "i, " + last + "b") == 0
    assert text(last + ".rejected") == "↵↵"
    directions = browser.run("return [...document.querySelectorAll('.exchange:last-of-type .prose')].at(-1).firstChild.matches(':dir(rtl)')")
    assert directions, "a line has the direction of its text"
    assert set(browser.run("return [...document.querySelectorAll('.exchange:last-of-type .accepted')].map((e) => getComputedStyle(e).textDecorationStyle)")) == {"solid", "dotted", "double"}
    # The controller's part of the figures, which this server has not.
    assert text("#gain") == "3.00" and [text("#rounds li:first-child " + part) for part in ("b", "span")] == [
        "suffix 3: 2 accepted",
        "expected 2.5 tokens in the time of 1.0 plain ones; took that of 1.0",
    ]
    copied = browser.run("getSelection().selectAllChildren([...document.querySelectorAll('.answer')].at(-1)); return getSelection().toString()")
    browser.run("getSelection().removeAllRanges(); document.activeElement.blur()")
    assert "never" not in copied and "שלום" in copied, copied

    # A stream that fails keeps what came, and says what happened.
    stream(chunk(1, ("So far", None)), {"error": {"message": "the request took longer than the server allows", "code": "timeout"}}, "[DONE]")
    send("y")
    wait("the error", lambda: "longer than the server allows" in (text(last + ".error") or ""))
    assert answer() == "So far"
    stream(chunk(1, ("Half", None)))
    send("z")
    wait("the error", lambda: "broke off" in (text(last + ".error") or ""))
    assert answer() == "Half"
    browser.run("window.fetch = ((real) => () => { window.fetch = real; return Promise.reject(new TypeError()) })(window.fetch)")
    send("Nobody there")
    wait("the error", lambda: "cannot be reached" in (text(last + ".error") or ""))
    assert browser.run("return document.getElementById('message').value") == "Nobody there"


def test_a_new_conversation():
    tab_to("new")
    browser.press(ENTER)
    assert count(".exchange") == 0 and text("#accepted") == "–" and focused() == "message"
    assert browser.run("return !document.getElementById('welcome').hidden")
    browser.press((CONTROL, "a"), "\ue017")
    # While an answer comes, too: what is left of it goes nowhere.
    send(ASKED)
    wait("some text", lambda: answer())
    tab_to("new")
    browser.press(ENTER)
    wait("it stops", idle, 5)
    assert count(".exchange") == 0 and browser.run("return document.getElementById('message').value") == ""
    settings(system="You are a careful copyist.", max_tokens="100")
    asked()
    send(ASKED)
    wait("it is over", idle)
    assert [m["role"] for m in asked()[0]["messages"]] == ["system", "user"]


CONTRAST = """
const channel = (c) => ((c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
const behind = (e) => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c.length < 4 || c[3] > 0.99) return c; } };
const contrast = (e) => { const [a, b] = [rgb(getComputedStyle(e).color), behind(e)].map(light); return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05); };
return arguments[0].map((s) => [s, contrast(document.querySelector(s))]);
"""


def test_every_form_of_it():
    for scheme in ("light", "dark"):
        for width, height in [(1280, 900), (360, 740)]:
            browser.look(width, height, scheme)
            wide = browser.run("return [document.documentElement.scrollWidth, innerWidth]")
            assert wide[0] <= wide[1], "it is wider than the view: %s" % wide
            seen = browser.run(CONTRAST, [".answer .line", ".accepted", ".answer .rejected", ".foot", "#model", "#send", "#legend li", ".question"])
            assert all(ratio >= 4.5 for _, ratio in seen), (scheme, seen)
        assert browser.run("return getComputedStyle(document.getElementById('panel')).display") == "none"
        tab_to("panel-button")
        browser.press(ENTER)
        assert browser.run("return getComputedStyle(document.getElementById('panel')).display") == "block"
        assert browser.run("return document.getElementById('panel-button').getAttribute('aria-expanded')") == "true"
        browser.press(ENTER)
    browser.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-reduced-motion", "value": "reduce"}])
    browser.run("document.querySelector('.answer').classList.add('growing')")
    assert browser.run("return getComputedStyle(document.querySelector('.answer').lastChild.lastChild, '::after').animationName") == "none"


def test_nothing_was_complained_of():
    # Refusals that were asked for stand in the log as resources that failed.
    refused = lambda entry: entry["source"] == "network" and re.search(r"status of (400|401) ", entry["message"])
    complaints = [entry for entry in browser.log() if entry["level"] in ("SEVERE", "WARNING") and not refused(entry)]
    assert not complaints, complaints
    # And it would be seen: markup cannot be made of text, and scripts of others do not run.
    outcome = browser.run("try { document.createElement('p').innerHTML = '<b>x</b>'; return 'made' } catch (error) { return error.name }")
    assert outcome == "TypeError", outcome
    browser.run("const s = document.createElement('style'); s.append('h1 { color: red }'); document.head.append(s)")
    seen = [entry["message"] for entry in browser.log()]
    assert any("Content Security Policy" in message for message in seen), seen


def main():
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
            print("ok", name[5:].replace("_", " "), flush=True)


with tempfile.TemporaryDirectory() as directory:
    browser = Browser(directory)
    try:
        main()
    finally:
        browser.close()
