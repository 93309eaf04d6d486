/* The shortest program: what a judged run costs around what is judged. */
int main(void) { return 0; }
