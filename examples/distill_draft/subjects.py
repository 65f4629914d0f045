"""What prompts are about: lists that `prompts.py` combines with its templates."""

from __future__ import annotations

TOPICS = """
photosynthesis|volcanoes|the water cycle|black holes|gravity|the French Revolution
the Roman Empire|the Silk Road|the Industrial Revolution|the printing press|ancient Egypt
the Renaissance|jazz music|classical music|the history of tea|coffee brewing|baking bread
pasta sauces|vegetarian cooking|healthy breakfasts|running a marathon|yoga|meditation|sleep habits
learning a language|time management|public speaking|writing a novel|poetry|watercolour painting
photography|film editing|board games|chess|football|swimming|mountain climbing|hiking|gardening
growing tomatoes|keeping bees|dog training|cats|whales|elephants|penguins|migrating birds
coral reefs|rainforests|deserts|the Arctic|glaciers|earthquakes|hurricanes|climate change
solar energy|wind power|electric cars|batteries|nuclear power|bridges|skyscrapers|trains|bicycles
sailing|airplanes|space travel|the Moon|Mars|the solar system|galaxies|telescopes|the Big Bang
atoms|the periodic table|chemical reactions|acids and bases|magnetism|electricity|light and colour
sound waves|DNA|evolution|cells|vaccines|the immune system|the human heart|the brain|memory|dreams
emotions|friendship|leadership|teamwork|negotiation|job interviews|writing a resume|remote work
starting a business|marketing|budgeting|saving money|investing|inflation|banks|taxes
supply and demand|globalization|democracy|constitutions|human rights|the United Nations|elections
philosophy|ethics|logic|prime numbers|fractions|percentages|geometry|the Pythagorean theorem
probability|statistics|calculus|algebra|cryptography|the internet|web browsers|databases
operating systems|computer networks|programming languages|machine learning|neural networks
robotics|video games|social media|online privacy|passwords|open source software|cloud computing
smartphones|museums|architecture|fashion|furniture|recycling|composting|water conservation
public libraries|schools|teaching children to read|homework|summer camps|family holidays|weddings
birthdays|gift ideas|letters|emails to a colleague|apology letters|book reviews|fairy tales
science fiction|detective stories|Shakespeare|Greek myths|dragons|pirates|knights
the Olympic Games|Japan|Brazil|Kenya|India|Iceland|Paris|New York City|Venice|the Amazon river
the Sahara|the Great Wall of China|the Pacific Ocean|chocolate|cheese|spices|rice|street food
nutrition|vitamins|first aid|dentists|stress|procrastination|setting goals|habits|creativity
curiosity|patience|courage|honesty|gratitude|moving to a new city|buying a house
renting an apartment|car maintenance|home repairs|cleaning a kitchen|packing a suitcase|airports
maps|clocks|calendars|money|trade|farming|forests|rivers|islands|bees and flowers|insects
dinosaurs|fossils|rocks and minerals|gold|diamonds|glass|paper|plastics|steel|wood|cotton|wool
silk
""".replace("\n", "|")

CODE_TASKS = """
reverses a string|checks whether a number is prime|computes the factorial of a number
returns the n-th Fibonacci number|sorts a list of numbers|finds the maximum of a list
removes duplicates from a list|counts the words in a text|counts the vowels in a string
checks whether a string is a palindrome|merges two sorted lists|performs a binary search
implements bubble sort|implements quicksort|implements merge sort
computes the greatest common divisor|converts Celsius to Fahrenheit|converts a number to binary
adds two matrices|multiplies two matrices|transposes a matrix|reads a file and counts its lines
writes a list to a CSV file|parses a JSON string|finds the second largest number in a list
computes the average of a list|computes the median of a list|computes the standard deviation
checks whether two words are anagrams|flattens a nested list
counts how often each character occurs|finds the longest word in a sentence|capitalizes every word
validates an email address|generates a random password|simulates rolling two dice
implements a stack|implements a queue|implements a linked list|implements a binary tree
inserts a key into a binary search tree|does a depth-first search|does a breadth-first search
finds the shortest path in a graph|solves the towers of Hanoi|generates all permutations of a list
generates all subsets of a set|solves the two-sum problem|rotates a list by k places
checks balanced parentheses|computes powers quickly|finds prime factors|sieves prime numbers
calculates compound interest|converts Roman numerals|formats a date
computes the days between two dates|downloads a web page|lists the files of a folder
renames files in a folder|measures elapsed time|caches results of a function
retries a function that fails|logs messages to a file|reads command line arguments
connects to a SQLite database|inserts rows into a table|groups dictionaries by a key
inverts a dictionary|merges two dictionaries|sorts a dictionary by value|splits a list into chunks
zips two lists into a dictionary|finds common elements of two lists
encrypts text with a Caesar cipher|counts lines of code|draws a triangle of stars
prints a multiplication table|plays rock, paper, scissors|plays a guessing game
manages a to-do list|models a bank account|models a shopping cart|models a library of books
models a student with grades|models a rectangle with area and perimeter|models a car with a speed
tracks an inventory|validates a password|checks a leap year|sums the digits of a number
checks an Armstrong number|finds missing numbers in a range|computes a running total
finds the intersection of two sets|truncates long strings|replaces spaces by underscores
counts down from ten|swaps two variables|checks whether a key is in a dictionary
filters even numbers|squares every number of a list|computes the distance between two points
computes the area of a circle|solves a quadratic equation|integrates a function numerically
computes a moving average|normalizes a vector|computes a dot product
""".replace("\n", "|")

OPENINGS = """
The old lighthouse keeper had not seen a ship for|It was a cold morning when the letter arrived
Nobody in the village believed that the river|She opened the door and found
On the first day of school|The train to the coast was late again|When the lights went out
In the middle of the market stood|The captain looked at the map and
For a hundred years the castle had been|My grandmother always said|The robot woke up in an empty
Two brothers lived at the edge of the forest|After the storm|The doctor
He had promised never to return|There was once a king who|The garden behind the house
Early in spring|The scientist checked the results twice|A small boat drifted
The violin had belonged to|At midnight|Every summer the children
The dragon was not what they expected|The detective noticed|Far to the north
The last page of the diary|Behind the waterfall|The new teacher wrote one word on the board
The history of the city begins|Modern computers are|One of the most important ideas in biology is
The economy of the region depends on|Water is essential for|The main advantage of the method is
In recent years, researchers have|The aim of this guide is to|There are three kinds of|The museum
""".replace("\n", "|")

PEOPLE = """
a ten-year-old child|a beginner|a busy manager|a university student|my grandmother|a tourist
a new employee|a team of engineers|a high school class|someone who has never heard of it
""".replace("\n", "|")


def split(text: str) -> tuple[str, ...]:
    """The entries of one of the lists above."""
    return tuple(entry.strip() for entry in text.split("|") if entry.strip())
