"""The HTTP that agents speak: OpenAI's shapes outside, the FrontDoor port inside.

app         routes, and what they share
generation  one request: body, prompt, tokens, and the client's departure
prompt      body -> InferenceRequest; runs in a thread, never on the loop
output      Tokens -> text, log-probabilities and finish reason
shapes      the same as OpenAI's JSON
"""
