"""
Common English words, which nearly every vocabulary holds as single tokens.

By length, three letters first: with its space such a word is four bytes, which is one token of the simulator.
"""

from __future__ import annotations

_TEXT = """
act add age ago aid aim air all and any arm art ask bad bag bar bay bed big bit box boy bus buy can car cat cow cry
cup cut day dog dry due ear eat egg end eye far few fit fly for fun gas get god gun guy has hat her him his hit hot
how ice its job joy key kid law lay led leg let lie lot low man map may men met mix new nor not now odd off oil old
one our out own pay per put ran raw red row run sad say sea see set she sir sit six sky son sun tax tea ten the tie
tip too top toy try two use via war was way who why win yes yet you able also area army away baby back ball band bank
base bear beat been best bill bird blue boat body book born both call came card care case cash cell cent city club
coal coat code cold come cook cool copy cost dark data date dead deal deep desk does done door down draw drop each
earn east easy edge else even ever face fact fair fall farm fast fear feel file fill film find fine fire firm fish
five food foot form four free from full fund game gave girl give glad goal gold gone good gray grew grow hair half
hall hand hang hard have head hear heat held help here high hill hold hole home hope hour huge idea inch into iron
item join jump just keep kept kind king knew know lady lake land slow town tree trip true turn view wait walk wall
warm week west wide wife wind wish wood word work year large later laugh learn least leave legal level light limit
local lower lunch major maybe meant metal money month never night north ocean offer often order other paint paper
party peace phone piece place plain plant point power press price quick quiet quite reach ready right river round
scale scene sense serve seven share sharp short small south space speak spend sport staff stage stand start state
stone store story study sugar table taken teach thank their there thing think third three today total touch trade
train trust truth under until value visit voice watch water while white whole woman world worth write wrong young
simple single sister social spring street strong summer supply system theory travel window winter trouble village
weather together
"""
WORDS: tuple[str, ...] = tuple(_TEXT.split())
