"""Words that tasks ask for and that demonstrations are written with."""

from __future__ import annotations


def _list(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text.split()))


# Anchors: drawn by tasks. Many, so that no constant text holds a fair share of them.
ANCHORS = _list(
    """
    anchor apron arrow attic badge bakery ballad bamboo banner barrel basin basket beacon beetle
    blanket blossom border bottle boulder branch breeze bridge broom bucket bugle burrow butter
    button cabin cable cactus camera candle canoe canyon captain caravan carpet castle cave cedar
    cellar chapel cherry chimney cider circle cliff clock cloud clover cobbler comet compass copper
    coral cottage cotton cradle crane crater cricket crown crystal curtain dagger daisy dancer
    delta desert diary dolphin donkey dragon drawer drummer dune eagle easel echo elbow ember
    engine envelope falcon farmer feather fence ferry fiddle field flute forest fountain fox
    galaxy garden garlic gate ginger glacier glove goblet granite grape guitar hammer hammock
    harbour harvest hedge helmet heron hill honey horizon hunter igloo island ivory jacket jasmine
    jewel journal jungle kettle kitchen kite ladder lagoon lake lantern lawn lemon letter library
    lighthouse lily lizard locket lumber magnet mantle maple marble market meadow medal melody
    mill mirror monkey moss motor mountain museum mushroom needle nest notebook oasis ocean
    olive orchard orchid otter oven owl paddle painter palace panther parcel parrot path pebble
    pencil pepper piano pigeon pillow pirate planet plum pocket pony poppy prairie puzzle quarry
    quilt rabbit radish raft railway rainbow ribbon river robin rocket rope saddle sailor salmon
    sandal satchel scarf shadow shepherd shovel silver sparrow spider spoon squirrel stable
    statue storm stove sugar sunset swan tailor temple thimble thunder ticket tiger timber torch
    tower trumpet tulip tunnel turtle valley velvet village violin wagon walnut waterfall weaver
    whale whistle willow window winter wizard wolf yard zebra
    """
)

NOUNS = _list(
    "bird boat cat child city cook dog door friend girl hat horse house king lamp man moon road "
    "room sea ship song star street sun table teacher team train tree town wall wind "
    "afternoon neighbour grandmother restaurant playground"
)
VERBS = _list(
    "glows waits moves shines falls rests turns sings sleeps stands floats grows jumps runs sits "
    "smiles travels works dances listens disappears"
)
ADJECTIVES = _list(
    "old red small big calm dark green quick quiet bright warm cold young happy tall soft tiny "
    "golden lonely gentle beautiful wonderful mysterious forgotten yellow brave lazy"
)
ADVERBS = _list("slowly softly today now again alone quietly gladly often well peacefully here")
PREPOSITIONS = _list("near behind under beside above past across by with before beyond inside")
DETERMINERS = _list("the this that every one our my his her each")
OPENERS = _list(
    "Today Perhaps Meanwhile Sometimes Tonight Suddenly Finally Somehow Outside Often Indeed Again "
    "Yesterday Once Eventually Clearly Luckily Nowadays Usually Upstairs"
)
CLOSINGS = (
    "That is all for now.",
    "Thank you for reading.",
    "See you tomorrow.",
    "Nothing more was said.",
    "Please write back soon.",
    "The rest is silence.",
    "We will meet again.",
    "Good night to everyone.",
)
COMMON = _list("the this that near by with and is of")
ACROSTICS = _list("sun map tree lamp rose bird wind star home gold stone bread night river")
