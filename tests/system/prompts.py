"""Questions of different kinds, through the demo model's chat template; most tests take the first ten."""

QUESTIONS = (
    "What is the capital of Japan and why is it famous?",
    "If I have three apples and eat one, then buy five more, how many do I have? Explain.",
    "Write a Python function that returns the factorial of n.",
    "List five benefits of regular exercise.",
    "Write a short story about a lighthouse keeper.",
    "Explain how a hash table works.",
    "Hi! Can you help me plan my weekend?",
    "Translate to French: The weather is nice today.",
    "Write a haiku about the sea.",
    "Why is the sky blue? Answer for a child, and then for a physicist who has little time.",
)
TEMPLATE = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
PROMPTS = tuple(TEMPLATE.format(question) for question in QUESTIONS)

MORE_QUESTIONS = (
    "Write a SQL query that counts orders per customer in 2024.",
    "What is the difference between TCP and UDP?",
    "Give me a recipe for pancakes for four people.",
    "Continue the list: Monday, Tuesday, Wednesday,",
    "Repeat the word hello twenty times.",
    "Who wrote Faust, and when?",
    "A train leaves at 9:15 and arrives at 11:40. How long does it travel?",
    "Summarise: The quick brown fox jumps over the lazy dog. The dog sleeps. The fox runs away into the forest.",
    "Write a slogan for a bicycle shop.",
    "Explain recursion with an example in Python.",
    "Translate to English: Guten Morgen, das Wetter bleibt heute schön.",
    "Name the planets of the solar system with one fact each.",
    "Write a polite email that declines a meeting.",
    "What are the advantages and disadvantages of nuclear power?",
    "Compose a limerick about a cat named Tom.",
    "Convert 72 degrees Fahrenheit to Celsius and show each step.",
    "Describe a sunset on Mars to somebody who cannot see.",
    "List all the months and how many days they have.",
    "Why do programmers confuse Halloween and Christmas?",
    "Write a dialogue between a teacher and a student about fractions.",
)
THIRTY = tuple(TEMPLATE.format(question) for question in (*QUESTIONS, *MORE_QUESTIONS))
