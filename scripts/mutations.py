# Every small mistake that scripts/mutate can plant in a C++ file: operators, constants, statements, calls, arguments,
# conditions. Works on the text, helped by the fixed formatting: binary operators stand between blanks. Comments,
# strings, preprocessor lines and the texts of checks are blanked first, so that they are never changed.
import collections
import re

# Replace text[start:end] of `path` by `new`; `line` is where that is.
Mutation = collections.namedtuple("Mutation", "path line kind start end new")

OPERATORS = {
    "<": ("<=", ">="), "<=": ("<", ">"), ">": (">=", "<="), ">=": (">", "<"), "==": ("!=",), "!=": ("==",),
    "+": ("-",), "-": ("+",), "*": ("/",), "/": ("*",), "&&": ("||",), "||": ("&&",),
    "+=": ("-=",), "-=": ("+=",), "*=": ("/=",), "/=": ("*=",),
    "&": ("|",), "|": ("&",), "<<": (">>",), ">>": ("<<",),
}
NUMBER = re.compile(r"(?<![\w.])(0[xX][0-9a-fA-F']+(?:\.[0-9a-fA-F]*)?(?:p[+-]?\d+)?|\d[\d']*(?:\.\d*)?(?:e[+-]?\d+)?)"
                    r"([uUlLfF]*)(?![\w.])")
ASSIGNMENT = re.compile(r"[\w.\->\[\]()*:]+ (?:=|\+=|-=|\*=|/=|\|=|&=|\^=|<<=|>>=) ")
CALL = re.compile(r"[\w:.\->\[\]*]+(?:<[\w:, *]+>)?(?:\(\))?[\w.\->\[\]()]*\(")
NOT_A_CALL = {"if", "for", "while", "switch", "catch", "return", "sizeof", "alignof", "decltype", "static_cast",
              "const_cast", "reinterpret_cast", "requires", "HWY_ATTR", "move", "forward", "explicit", "operator",
              "HS_CHECK"}
TAG = re.compile(r"d|df|du|du64")  # Highway's: it is never what comes first that is a value
OPEN, CLOSE = "([{", ")]}"


def blank(text):  # same length, newlines kept
    return re.sub(r"[^\n]", " ", text)


def closing(text, at):  # the place of the bracket that closes the one at `at`
    depth = 0
    for i in range(at, len(text)):
        depth += (text[i] in OPEN) - (text[i] in CLOSE)
        if depth == 0:
            return i
    return len(text) - 1


def arguments(text, at):  # the (start, end) of what stands between commas in the brackets that open at `at`
    end, found, start, depth, angle = closing(text, at), [], at + 1, 0, 0
    for i in range(at + 1, end + 1):
        depth += (text[i] in OPEN) - (text[i] in CLOSE and i != end)
        if text[i] == "<" and re.match(r"\w<[\w:]", text[i - 1:i + 2]):
            angle += 1
        elif text[i] == ">" and angle and text[i - 1] != "-":
            angle -= 1
        if i == end or (text[i] == "," and depth == 0 and angle == 0):
            while start < i and text[start].isspace():
                start += 1
            found.append((start, len(text[:i].rstrip()) if i > start else i))
            start = i + 1
    return [(a, b) for a, b in found if a < b]


def masked(text):
    """`text` with all blanked that is not to be mutated."""
    text = re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|(?<!\w)\'(?:\\.|[^\'\\\n])\'',
                  lambda m: '"' + blank(m[0][2:]) + '"' if m[0][0] == '"' and len(m[0]) > 1 else blank(m[0]),
                  text, flags=re.S)
    text = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda m: blank(m[0]), text, flags=re.M)
    for pattern, kept in ((r"\bHS_CHECK(\()", 1), (r"\bfail<\w+>(\()", 0), (r"\bwarn_once(\()", 0),
                          (r"\bstatic_assert(\()", 0)):
        for match in list(re.finditer(pattern, text)):
            spans = arguments(text, match.start(1))
            end = closing(text, match.start(1))
            start = spans[kept - 1][1] if kept and spans else match.end(1)
            text = text[:start] + blank(text[start:end]) + text[end:]
    return text


def changed_number(digits, suffix):
    if digits[:2] in ("0x", "0X"):
        if "p" in digits:
            base, exponent = digits.split("p")
            return [f"{base}p{int(exponent) + 1}{suffix}"]
        return [f"0x{int(digits.replace(chr(39), ''), 16) + 1:X}{suffix}"]
    if "." in digits or "e" in digits:
        value = float(digits)
        return [("1.0" if value == 0 else "0.0" if value == 1 else repr(value * 2)) + suffix]
    value = int(digits.replace("'", ""))
    return [new + suffix for new in {0: ["1"], 1: ["0", "2"]}.get(value, [str(value + 1)])]


def looks_declared(argument):  # as in a list of parameters: `const Tensor& x`, `double value = 1`
    return re.search(r"^$|[\w>&*\]] +[*&]*\w+(?: = .*)?$|&$", argument) is not None


def statements(text):
    """The (start, end) of the simple statements, `;` included."""
    for match in re.finditer(r";", text):
        end, i, depth = match.end(), match.start() - 1, 0
        if text[i] == "}":  # as in `x = {};`
            i = text.rfind("{", 0, i) - 1
        while i >= 0 and not (depth == 0 and text[i] in "{};("):
            if text[i] == ")" and depth == 0:  # of a call, or of `if (...)` before the statement
                opened, level = i, 0
                while opened >= 0:
                    level += (text[opened] in CLOSE) - (text[opened] in OPEN)
                    if level == 0:
                        break
                    opened -= 1
                if re.search(r"\b(if|if constexpr|for|while) $", text[:opened]):
                    break
                i = opened - 1
                continue
            if text[i] == ":" and text[i - 1] != ":" and text[i + 1] != ":" and "?" not in text[i - 60:i]:
                break
            depth += (text[i] in "]") - (text[i] in "[")
            i -= 1
        if i >= 0 and text[i] != "(":
            start = i + 1 + len(text[i + 1:end]) - len(text[i + 1:end].lstrip())
            if re.match(r"else\b", text[start:]):
                start += 5
            yield start, end


def is_inside_block_of(text, start, words):  # whether the block around `start` belongs to an if, a loop ...
    depth = 0
    for i in range(start - 1, -1, -1):
        depth += (text[i] == "}") - (text[i] == "{")
        if depth < 0:
            head = re.split(r"[;{}]", text[:i])[-1]
            return re.search(r"\b(" + words + r")\b", head) is not None and "[" not in head
    return False


def mutations(path, source, begin=0, end=None):
    """All of `source` (the text of `path`) between the offsets, in order."""
    text, end = masked(source), len(source) if end is None else end
    found = {}

    def add(kind, a, b, new):
        if begin <= a and b <= end and source[a:b] != new:
            found.setdefault((a, b, new), Mutation(path, source.count("\n", 0, a) + 1, kind, a, b, new))

    for match in re.finditer(r"(?<= )(\+=|-=|\*=|/=|<=|>=|==|!=|&&|\|\||<<|>>|[<>+\-*/&|])(?=\s)", text):
        around = text[match.start() - 2] + match[1] + text[match.end() + 1]
        if '"' not in around:  # strings can only be added
            for new in OPERATORS[match[1]]:
                add("operator", match.start(), match.end(), new)
    for match in re.finditer(r"\+\+|--", text):
        add("increment", match.start(), match.end(), "--" if match[0] == "++" else "++")
    for match in re.finditer(r"!(?=[\w(])", text):
        add("negation", match.start(), match.end(), "")
    for match in re.finditer(r"\b(true|false)\b", text):
        add("constant", match.start(), match.end(), "false" if match[0] == "true" else "true")
    for match in NUMBER.finditer(text):
        if not re.search(r"\)(?: const| noexcept)* = $", text[:match.start()]):  # not a pure virtual's `= 0;`
            for new in changed_number(match[1], match[2]):
                add("constant", match.start(), match.end(), new)
    for match in re.finditer(r"\bif (\()", text):
        inner, last = match.end(), closing(text, match.start(1))
        condition = text[inner:last]
        is_comparison = re.fullmatch(r"[^&|?\n]* (==|!=|<|>|<=|>=) [^&|?\n]*", condition)
        if not is_comparison and not re.search(r" = |;|^!(?!.*(&&|\|\|))", condition):
            add("condition", inner, last, f"!({source[inner:last]})")
    for match in re.finditer(r"\bHS_CHECK(\()", text):
        a, b = arguments(text, match.start(1))[0]
        add("check dropped", a, b, "true")
    whole = set()  # where statements begin
    for a, b in statements(text):
        plain = " ".join(text[a:b].split())
        whole.add(a)
        if ";" in plain[:-1] or " = default" in plain or " = delete" in plain:
            continue
        if re.match(r"(return|break|continue)\b", plain):
            before = text[:a].rstrip()
            if plain == "return;" or before.endswith((")", "else")) or is_inside_block_of(text, a, "if|for|while|else"):
                add("statement dropped", a, b, ";")
        elif re.match(r"(\+\+|--)\w|throw;", plain) or ASSIGNMENT.match(plain):
            add("statement dropped", a, b, ";")
        else:
            call = CALL.match(plain)
            if call and call.group().split("(")[0] not in NOT_A_CALL and not plain.startswith("HWY_"):
                spans = arguments(plain, call.end() - 1)
                if not any(looks_declared(plain[x:y]) for x, y in spans):
                    add("statement dropped", a, b, ";")
    for match in re.finditer(r"\.clone\(\)", text):
        add("call dropped", match.start(), match.end(), "")
    for match in re.finditer(r"((?:\w+::)*\w*)(?:<\w+>)?([({])", text):
        name = match[1].split("::")[-1]
        if name in NOT_A_CALL or (match[2] == "{" and not re.search(r"[\w>(,{]$|[(,={] $", text[:match.start(2)])):
            continue
        spans = arguments(text, match.start(2))
        if any(looks_declared(text[a:b]) or ";" in text[a:b] for a, b in spans):
            continue
        if match[2] == "(" and len(spans) == 1 and name and not name[0].isupper() and match.start() not in whole and \
                not name.endswith("_") and not re.search(r"[.>~]$|\w>+ $", text[match.start() - 4:match.start()]):
            a, b = spans[0]
            add("call dropped", match.start(), closing(text, match.start(2)) + 1, f"({source[a:b]})")
        for (a, b), (c, d) in zip(spans, spans[1:]) if name not in ("min", "max") else ():
            if "\n" not in source[a:d] and source[a:b] != source[c:d] and not TAG.fullmatch(source[a:b]):
                add("arguments swapped", a, d, source[c:d] + source[b:c] + source[a:b])
    return sorted(found.values(), key=lambda m: (m.line, m.start, m.new))
