# pyright: basic
"""Texts by which shards are compared with their source: prose, code, dialogue, another language; and their tokens."""

from pathlib import Path
from typing import Final, Literal

TEXTS: Final = (
    "The lighthouse keeper climbed the stairs every evening, lit the lamp and wrote down the names of the ships. On "
    "clear nights he could see the harbour on the other side of the bay, where the fishing boats lay in a row and the "
    "windows of the inn were yellow until midnight. When fog came in he rang the bell once a minute and counted: four "
    "hundred and eighty strokes until dawn. Nobody ever thanked him for it, but in forty years no ship was lost on "
    "the rocks below the tower, and that, he used to say, was thanks enough for a man who liked to be alone.",
    "def factorial(n):\n    return 1 if n < 2 else n * factorial(n - 1)\n\n\ndef primes(limit):\n"
    "    sieve = [True] * limit\n    for i in range(2, limit):\n        if sieve[i]:\n            yield i\n"
    "            for j in range(i * i, limit, i):\n                sieve[j] = False\n\n\n"
    "if __name__ == '__main__':\n    print(list(primes(50)))\n",
    "Question: A train leaves the station at nine o'clock and travels at sixty kilometres an hour. How far has it come "
    "at half past eleven?\nAnswer: From nine o'clock to half past eleven is two and a half hours. At sixty kilometres "
    "an hour the train travels sixty times two and a half, which is one hundred and fifty kilometres.",
    "Ein Netz aus kleinen Rechnern kann ein großes Modell bedienen, wenn jeder nur einen Teil davon trägt. Die "
    "Schichten werden der Reihe nach verteilt, und was die eine berechnet hat, geht gleich weiter an die nächste.",
)

# By which scales are chosen. None of them is among those that are measured.
CALIBRATION: Final = (
    "Bread needs four things: flour, water, salt and time. Mix the first three in the evening, cover the bowl, and let "
    "the dough rest until morning. Then fold it twice, let it rise again for an hour and bake it in a very hot oven, "
    "with a cup of water on the bottom so that the crust stays soft while the loaf grows.",
    "import csv\n\n\ndef totals(path):\n    with open(path) as file:\n        rows = list(csv.DictReader(file))\n"
    "    found = {}\n    for row in rows:\n        found[row['name']] = found.get(row['name'], 0) + int(row['count'])\n"
    "    return sorted(found.items(), key=lambda pair: -pair[1])\n",
    "User: Can you tell me why the sky is blue?\nAssistant: Sunlight is a mixture of all colours. Air scatters short "
    "waves more than long ones, so blue light reaches us from everywhere, while red light mostly goes straight on. In "
    "the evening the way through the air is longer, and what is left is orange and red.",
    "The meeting began at ten. Present were the treasurer, the two secretaries and eleven members. The minutes of the "
    "last meeting were read and accepted. The roof of the club house will be repaired in spring; three offers were "
    "received, of 4,200, 3,950 and 5,100. The second was accepted with nine votes against two.",
    "Le train de nuit arrive à sept heures vingt. Sur le quai, les voyageurs cherchent leurs valises, un enfant compte "
    "les wagons, et le chef de gare regarde sa montre comme s'il attendait encore quelqu'un.",
)


def tokenize(folder: Path, kind: Literal["huggingface", "openvino"], text: str) -> list[int]:
    """Token ids of a text by the tokenizer in a folder."""
    if kind == "huggingface":
        from tokenizers import Tokenizer  # noqa: PLC0415

        return Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text, add_special_tokens=False).ids
    from openvino_genai import Tokenizer as GenAITokenizer  # noqa: PLC0415

    return GenAITokenizer(str(folder)).encode(text, add_special_tokens=False).input_ids.data[0].tolist()
