"""A page in headless Chromium, by the protocol of its developer tools.

Messages go through two pipes, each one JSON and a zero byte, so that nothing
but Chromium itself is needed.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator

NAMES = ('chromium', 'chromium-browser', 'google-chrome',
         'google-chrome-stable', 'chrome')
_FLAGS = (
    '--headless=new', '--no-sandbox', '--disable-gpu', '--no-first-run',
    '--disable-dev-shm-usage', '--disable-extensions', '--hide-scrollbars',
    '--disable-background-networking', '--disable-component-update',
    '--disable-sync', '--remote-debugging-pipe')


def find() -> str | None:
  """The path of Chromium, or None."""
  return next(filter(None, map(shutil.which, NAMES)), None)


class Page:
  """A tab.

  Attributes:
    requests: addresses that were asked for.
    logged: texts of warnings, errors and exceptions.
  """

  def __init__(self, write, read):
    self._write, self._read = write, read
    self._number, self._session, self._buffer = 0, None, b''
    self.requests: list[str] = []
    self.logged: list[str] = []
    target = self.send('Target.createTarget', url='about:blank')['targetId']
    self._session = self.send('Target.attachToTarget', targetId=target,
                              flatten=True)['sessionId']
    for domain in ('Page', 'Network', 'Log', 'Runtime', 'DOM'):
      self.send(f'{domain}.enable')

  def send(self, method: str, **params) -> dict:
    """Sends a command and waits for its answer."""
    self._number += 1
    message = {'id': self._number, 'method': method, 'params': params}
    if self._session:
      message['sessionId'] = self._session
    os.write(self._write, json.dumps(message).encode() + b'\0')
    while True:
      answer = self._next()
      if answer.get('id') == self._number:
        assert 'error' not in answer, answer
        return answer['result']

  def _next(self) -> dict:
    while b'\0' not in self._buffer:
      part = os.read(self._read, 1 << 20)
      assert part, 'Chromium ended'
      self._buffer += part
    text, self._buffer = self._buffer.split(b'\0', 1)
    message = json.loads(text)
    self._note(message.get('method'), message.get('params', {}))
    return message

  def _note(self, method: str | None, params: dict) -> None:
    if method == 'Network.requestWillBeSent':
      self.requests.append(params['request']['url'])
    elif method == 'Log.entryAdded':
      self.logged.append(params['entry']['text'])
    elif method == 'Runtime.consoleAPICalled':
      self.logged.append(json.dumps(params['args']))
    elif method == 'Runtime.exceptionThrown':
      self.logged.append(json.dumps(params['exceptionDetails']))

  def look(self, *, width: int = 1280, height: int = 900, dark: bool = False,
           paper: bool = False) -> None:
    """What the page is shown on."""
    self.send('Emulation.setDeviceMetricsOverride', width=width, height=height,
              deviceScaleFactor=1, mobile=width < 500)
    self.send('Emulation.setEmulatedMedia', media='print' if paper else '',
              features=[{'name': 'prefers-color-scheme',
                         'value': 'dark' if dark else 'light'}])

  def open(self, address: str) -> None:
    """Loads a page, and waits until all of it is there."""
    self.send('Page.navigate', url=address)
    while self._next().get('method') != 'Page.loadEventFired':
      pass

  def value(self, script: str):
    """What a line of JavaScript gives."""
    result = self.send('Runtime.evaluate', expression=script,
                       returnByValue=True)
    assert 'exceptionDetails' not in result, result
    return result['result'].get('value')

  def press(self, key: str, code: int) -> None:
    """A key, down and up."""
    for kind in ('keyDown', 'keyUp'):
      self.send('Input.dispatchKeyEvent', type=kind, key=key, code=key,
                windowsVirtualKeyCode=code,
                **({'text': '\r'} if key == 'Enter' and kind == 'keyDown'
                   else {}))

  def picture(self, path: str, clip: dict | None = None) -> None:
    """Saves what is seen, or a part of the page, as a PNG."""
    more = {'clip': {**clip, 'scale': 1}} if clip else {}
    found = self.send('Page.captureScreenshot', format='png',
                      captureBeyondViewport=True, **more)
    with open(path, 'wb') as file:
      file.write(base64.b64decode(found['data']))

  def printed(self, path: str) -> None:
    """Saves it as it is printed, a PDF."""
    found = self.send('Page.printToPDF', printBackground=False)
    with open(path, 'wb') as file:
      file.write(base64.b64decode(found['data']))


@contextlib.contextmanager
def opened(folder) -> Iterator[Page]:
  """A tab of a new Chromium, which keeps its files in `folder`."""
  to_browser, write = os.pipe()
  read, from_browser = os.pipe()

  def as_three_and_four():
    # Copies first: one of the two may already have the other's number.
    one, other = os.dup(to_browser), os.dup(from_browser)
    os.dup2(one, 3)
    os.dup2(other, 4)

  process = subprocess.Popen(
      [find(), *_FLAGS, f'--user-data-dir={folder}', 'about:blank'],
      preexec_fn=as_three_and_four, pass_fds=(3, 4, to_browser, from_browser),
      stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
      stderr=subprocess.DEVNULL)
  os.close(to_browser)
  os.close(from_browser)
  try:
    yield Page(write, read)
  finally:
    process.kill()
    process.wait()
    os.close(write)
    os.close(read)
