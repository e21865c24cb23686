"""Shows the fields of classes on the site: an extension of griffe.

A field that has no docstring gets the comment beside it or above it, and a
setting the help and the default of its flag.
"""

from __future__ import annotations

import ast
import re

import griffe


class Fields(griffe.Extension):
  """Describes the attributes of all classes once a package is loaded."""

  def on_package(self, *, pkg: griffe.Module, **unused) -> None:
    classes = list(self._collected(pkg))
    self._classes = {cls.name: cls for cls in classes}
    described = [(cls, member, *self._setting(cls.name, member.name))
                 for cls in classes for member in cls.members.values()
                 if member.is_attribute and not member.is_private
                 and not member.has_docstring]  # Without inherited ones.
    public = {pkg.members[name].target_path for name in pkg.exports
              if pkg.members[name].is_alias}
    for cls, member, text, default in described:
      if text:
        member.value = default
      text = text or _comment(cls, member)
      if text:
        member.docstring = griffe.Docstring(
            text.replace('<', '&lt;'), parent=member)
      elif (cls.path in public and not member.name.isupper()
            and f'{member.name}:' not in getattr(cls.docstring, 'value', '')):
        raise ValueError(f'{member.path}: the reference shows it, but it has '
                         'no comment')

  def _collected(self, parent):
    """The classes of a module and of those below it."""
    for member in parent.members.values():
      if member.is_alias:
        continue
      if member.is_class:
        yield member
      if member.is_module or member.is_class:
        yield from self._collected(member)

  def _setting(self, cls: str, name: str) -> tuple[str, str]:
    """(help, default) of `x: int = setting(...)` or `as_in(...)`; else ''s."""
    attribute = self._classes[cls].members.get(name)
    call = attribute and ast.parse(str(attribute.value), mode='eval').body
    if not isinstance(call, ast.Call):
      return '', ''
    named = {keyword.arg: keyword.value for keyword in call.keywords}
    function = getattr(call.func, 'id', '')
    if function == 'setting':
      named.update(zip(('default', 'help'), call.args))
      text, default = '', ''
    elif function == 'as_in':
      text, default = self._setting(call.args[0].id,
                                    ast.literal_eval(call.args[1]))
    else:
      return '', ''
    if 'help' in named:
      text = _text(named['help'])
    if 'default' in named:
      default = ast.unparse(named['default'])
    return text, default


def _text(node: ast.expr) -> str:
  """A string; of names in an f-string only the names."""
  if isinstance(node, ast.JoinedStr):
    return ''.join(part.value if isinstance(part, ast.Constant)
                   else ast.unparse(part.value) for part in node.values)
  return ast.literal_eval(node)


def _comment(cls, attribute) -> str:
  lines = cls.filepath.read_text(encoding='utf-8').splitlines()
  beside = re.search(r'\s# (.*)', lines[attribute.endlineno - 1])
  if beside:
    return beside[1]
  above, number = [], attribute.lineno - 2
  while number >= 0 and lines[number].lstrip().startswith('# '):
    above.insert(0, lines[number].lstrip()[2:])
    number -= 1
  return ' '.join(above)
