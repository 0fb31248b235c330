// What a compiler with the right flags accepts.
#include <vector>

int main() { return static_cast<int>(std::vector<int>().size()); }
