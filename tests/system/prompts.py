"""Ten questions of different kinds, through the demo model's chat template."""

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
